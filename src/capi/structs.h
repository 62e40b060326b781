// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "headrace/c_api.h"
#include "headrace/error.h"

namespace headrace::capi {

/// Bytes of a structure in the first version that had it: a caller never has less. What is added later is not counted.
template <class T>
inline constexpr std::size_t kFirstBytes = 0;
template <>
inline constexpr std::size_t kFirstBytes<HrAttention> = 96;
template <>
inline constexpr std::size_t kFirstBytes<HrBatch> = 40;
template <>
inline constexpr std::size_t kFirstBytes<HrLimits> = 56;
template <>
inline constexpr std::size_t kFirstBytes<HrHints> = 16;
template <>
inline constexpr std::size_t kFirstBytes<HrAttendCall> = 896;
template <>
inline constexpr std::size_t kFirstBytes<HrAppendCall> = 328;
template <>
inline constexpr std::size_t kFirstBytes<HrIndexer> = 48;
template <>
inline constexpr std::size_t kFirstBytes<HrAppendIndexKeysCall> = 648;
template <>
inline constexpr std::size_t kFirstBytes<HrSelectCall> = 776;
template <>
inline constexpr std::size_t kFirstBytes<HrScoreRowCall> = 560;
template <>
inline constexpr std::size_t kFirstBytes<HrScoreRowsCall> = 592;

/// Longer structures than this are taken for ones whose size was never set.
inline constexpr std::size_t kMostStructBytes = 65536;

/// @throws Error naming `name` where the pointer is null
template <class T>
T& required(const std::string& name, T* pointer) {
  if (pointer == nullptr) {
    throw Error(name, "an address", "null");
  }
  return *pointer;
}

/// A structure of the caller's that begins with its size, as long as it is known here. What lies beyond that size is
/// zero, and what the caller has beyond must be.
/// @throws Error naming `name`
template <class T>
[[nodiscard]] T read_struct(const std::string& name, const T* from) {
  static_assert(kFirstBytes<T> > 0 && kFirstBytes<T> <= sizeof(T));
  static_assert(std::is_trivially_copyable_v<T> && std::is_same_v<decltype(T::size), std::size_t>);
  const std::size_t size = required(name, from).size;
  if (size < kFirstBytes<T> || size > kMostStructBytes) {
    throw Error(name + ".size",
                "the bytes of the structure, from " + std::to_string(kFirstBytes<T>) + " to " +
                    std::to_string(kMostStructBytes),
                std::to_string(size));
  }
  const auto* const bytes = reinterpret_cast<const std::byte*>(from);
  const auto* const end = bytes + size;
  const auto* const known = bytes + std::min(size, sizeof(T));
  if (const auto* const odd = std::find_if(known, end, [](std::byte b) { return b != std::byte{0}; }); odd != end) {
    throw UnsupportedError(
        name, "zeros beyond the " + std::to_string(sizeof(T)) + " bytes that this version of the library knows",
        std::to_string(std::to_integer<int>(*odd)) + " in byte " + std::to_string(odd - bytes));
  }
  T result{};
  std::memcpy(&result, from, static_cast<std::size_t>(known - bytes));
  return result;
}

/// @throws Error unless a field that has no meaning yet is 0
inline void expect_reserved(const std::string& name, int value) {
  if (value != 0) {
    throw Error(name, "0", std::to_string(value));
  }
}

/// @throws Error unless a field that has no meaning beside `others` is 0
inline void expect_unused(const std::string& name, std::int64_t value, const std::string& others) {
  if (value != 0) {
    throw Error(name, "0 for " + others, std::to_string(value));
  }
}

/// @throws Error unless a field is 0 or 1
[[nodiscard]] inline bool flag(const std::string& name, std::int64_t value) {
  if (value != 0 && value != 1) {
    throw Error(name, "0 or 1", std::to_string(value));
  }
  return value == 1;
}

}  // namespace headrace::capi
