// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/paths/rounding.h"

/// The tables of a plan on a GPU: arrays one after the other, in memory of the caller.
namespace headrace::attention {

/// Where each array begins is a multiple of it, and so is the size of all.
inline constexpr std::int64_t kTableAlignment = 16;

/// Where an array of T lies.
template <class T>
struct TableAt {
  std::int64_t offset = 0;

  [[nodiscard]] const T* in(const std::byte* tables) const noexcept {
    return reinterpret_cast<const T*>(tables + offset);
  }
};

/// Bytes that `count` entries take at most.
template <class T>
[[nodiscard]] constexpr std::int64_t table_bytes(std::int64_t count) noexcept {
  static_assert(alignof(T) <= kTableAlignment);
  return round_up(count * static_cast<std::int64_t>(sizeof(T)), kTableAlignment);
}

}  // namespace headrace::attention
