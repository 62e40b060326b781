// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "headrace/export.h"

namespace headrace {

/// Element types. The compute dtype of a layer is `float32` or `bfloat16`; the others occur in checkpoints and caches.
enum class DType : std::uint8_t { float32, bfloat16, float16, float8_e4m3, float8_e8m0, int32, int64, uint8 };

/// Bytes of one element.
[[nodiscard]] HEADRACE_EXPORT std::int64_t size_of(DType dtype) noexcept;

/// "float32", "bfloat16", ... as the command line spells it.
[[nodiscard]] HEADRACE_EXPORT std::string_view name_of(DType dtype) noexcept;

/// The upper half of an IEEE binary32. Conversion from float rounds to nearest even; NaN stays NaN.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  explicit bfloat16(float value) noexcept : bits(round(value)) {}
  explicit operator float() const noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

 private:
  static std::uint16_t round(float value) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffU) > 0x7f800000U) {
      return static_cast<std::uint16_t>((u >> 16) | 0x40U);
    }
    return static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
  }
};

/// IEEE binary16, for checkpoints.
struct HEADRACE_EXPORT float16 {
  std::uint16_t bits = 0;
  explicit operator float() const noexcept;
};

/// OCP 8-bit float e4m3fn: no infinities, NaN is 0x7f and 0xff, largest finite value 448.
/// Conversion from float rounds to nearest even and saturates at 448; NaN stays NaN.
/// Source: "OCP 8-bit Floating Point Specification (OFP8)", revision 1.0.
struct HEADRACE_EXPORT float8_e4m3 {
  std::uint8_t bits = 0;

  float8_e4m3() = default;
  explicit float8_e4m3(float value) noexcept;
  explicit operator float() const noexcept;
};

/// OCP microscaling scale e8m0: 2^(bits - 127); 0xff is NaN.
struct HEADRACE_EXPORT float8_e8m0 {
  std::uint8_t bits = 0;
  explicit operator float() const noexcept;
};

/// Maps a C++ element type to its DType.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::float32;
};
template <>
struct DTypeOf<bfloat16> {
  static constexpr DType value = DType::bfloat16;
};
template <>
struct DTypeOf<float16> {
  static constexpr DType value = DType::float16;
};
template <>
struct DTypeOf<float8_e4m3> {
  static constexpr DType value = DType::float8_e4m3;
};
template <>
struct DTypeOf<float8_e8m0> {
  static constexpr DType value = DType::float8_e8m0;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::int32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::int64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::uint8;
};

}  // namespace headrace
