// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace::attention {

/// Hands out 64-byte aligned pieces of a workspace, one after the other. Without memory it only counts, so that the
/// same code that lays a workspace out also says how large it must be.
class Arena {
 public:
  Arena() = default;
  explicit Arena(std::span<std::byte> memory) noexcept : memory_(memory) {}

  template <class T>
  [[nodiscard]] std::span<T> take(std::int64_t count) noexcept {
    const std::int64_t begin = used_;
    used_ += (count * static_cast<std::int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    if (memory_.empty()) {
      return {};
    }
    return {reinterpret_cast<T*>(memory_.data() + begin), static_cast<std::size_t>(count)};
  }
  [[nodiscard]] std::int64_t used() const noexcept { return used_; }

  static constexpr std::int64_t kAlignment = 64;

 private:
  std::span<std::byte> memory_;
  std::int64_t used_ = 0;
};

}  // namespace headrace::attention
