// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

namespace headrace::fuzz {

/// Hands out an input's bytes as numbers; zeros after its end, so that every input means something.
class ByteSource {
 public:
  explicit ByteSource(std::span<const std::uint8_t> bytes) noexcept : bytes_(bytes) {}

  std::uint8_t byte() noexcept {
    if (bytes_.empty()) {
      return 0;
    }
    const std::uint8_t value = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return value;
  }
  bool flag() noexcept { return byte() % 2 != 0; }
  /// In [0, n).
  std::int64_t below(std::int64_t n) noexcept { return byte() % n; }
  /// Any int32, small ones by one byte: a number in [-112, 127], an end of the range, or four bytes that follow.
  std::int32_t number() noexcept {
    const std::uint8_t first = byte();
    if (first < 0x80 || first >= 0x90) {
      return std::bit_cast<std::int8_t>(first);
    }
    if (first == 0x80) {
      return std::numeric_limits<std::int32_t>::min();
    }
    if (first == 0x81) {
      return std::numeric_limits<std::int32_t>::max();
    }
    std::uint32_t bits = 0;
    for (int shift = 0; shift < 32; shift += 8) {
      bits |= std::uint32_t{byte()} << shift;
    }
    return std::bit_cast<std::int32_t>(bits);
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace headrace::fuzz
