// SPDX-License-Identifier: Apache-2.0
#include "headrace/dtype.h"

#include <cmath>
#include <limits>

namespace headrace {

std::int64_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::int64:
      return 8;
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::bfloat16:
    case DType::float16:
      return 2;
    case DType::float8_e4m3:
    case DType::float8_e8m0:
    case DType::uint8:
      return 1;
  }
  return 0;
}

std::string_view name_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float16:
      return "float16";
    case DType::float8_e4m3:
      return "float8_e4m3";
    case DType::float8_e8m0:
      return "float8_e8m0";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
    case DType::uint8:
      return "uint8";
  }
  return "unknown";
}

float16::operator float() const noexcept {
  const float sign = (bits & 0x8000U) != 0 ? -1.0F : 1.0F;
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  if (exponent == 31) {
    return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
  }
  if (exponent == 0) {
    return sign * std::ldexp(static_cast<float>(mantissa), -24);
  }
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

float8_e4m3::float8_e4m3(float value) noexcept {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>((u >> 24) & 0x80U);
  const std::uint32_t magnitude = u & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    bits = static_cast<std::uint8_t>(sign | 0x7fU);
    return;
  }
  const float a = std::bit_cast<float>(magnitude);
  if (a >= 448.0F) {
    bits = static_cast<std::uint8_t>(sign | 0x7eU);
    return;
  }
  if (a < 0x1p-6F) {
    // Subnormal: multiples of 2^-9. Adding 1.5 * 2^14 leaves exactly that resolution, rounded to nearest even; a result
    // of 8 is the smallest normal number and its encoding follows on.
    const float rounded = (a + 0x1.8p14F) - 0x1.8p14F;
    bits = static_cast<std::uint8_t>(sign | static_cast<std::uint8_t>(rounded * 0x1p9F));
    return;
  }
  // Normal: round the 23-bit mantissa to 3 bits, to nearest even; a carry moves into the exponent as it should. Values
  // in (448, 464) were saturated above, so the result is at most 0x7e.
  const std::uint32_t rounded = magnitude + 0x7ffffU + ((magnitude >> 20) & 1U);
  bits = static_cast<std::uint8_t>(sign | (((rounded >> 20) - (120U << 3)) & 0x7fU));
}

float8_e4m3::operator float() const noexcept {
  const int exponent = (bits >> 3) & 0xf;
  const int mantissa = bits & 0x7;
  if ((bits & 0x7fU) == 0x7fU) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9F
                                        : std::bit_cast<float>((static_cast<std::uint32_t>(exponent + 120) << 23) |
                                                               (static_cast<std::uint32_t>(mantissa) << 20));
  return (bits & 0x80U) != 0 ? -magnitude : magnitude;
}

float8_e8m0::operator float() const noexcept {
  if (bits == 0xff) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  return std::ldexp(1.0F, bits - 127);
}

}  // namespace headrace
