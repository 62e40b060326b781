// SPDX-License-Identifier: Apache-2.0
// Element types, exhaustively, against arithmetic in double that shares no bit trick with the conversions.
#include "headrace/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "core/dtype_names.h"
#include "core/layout_text.h"
#include "support/random.h"

namespace headrace {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A binary number of `exponent_bits` and `mantissa_bits` with IEEE bias and subnormals; specials are the caller's.
double decode(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const std::uint32_t mantissa = bits & ((1U << mantissa_bits) - 1U);
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1U << exponent_bits) - 1U));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double fraction = std::ldexp(static_cast<double>(mantissa), -mantissa_bits);
  const double magnitude = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, exponent - bias);
  return ((bits >> (exponent_bits + mantissa_bits)) & 1U) != 0 ? -magnitude : magnitude;
}

float bf16_to_float(std::uint32_t bits) {
  bfloat16 value;
  value.bits = static_cast<std::uint16_t>(bits);
  return static_cast<float>(value);
}

float e4m3_to_float(std::uint32_t bits) {
  float8_e4m3 value;
  value.bits = static_cast<std::uint8_t>(bits);
  return static_cast<float>(value);
}

/// Random floats of every magnitude: random bits.
float any_float(test::Random& random) { return std::bit_cast<float>(static_cast<std::uint32_t>(random.bits())); }

TEST(BFloat16, EveryCodeDecodes) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const float value = bf16_to_float(bits);
    const std::uint32_t magnitude = bits & 0x7fffU;
    if (magnitude > 0x7f80U) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else if (magnitude == 0x7f80U) {
      EXPECT_EQ(value, (bits & 0x8000U) != 0 ? -kInfinity : kInfinity);
    } else {
      ASSERT_EQ(static_cast<double>(value), decode(bits, 8, 7)) << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000U) != 0) << bits;
    }
  }
}

TEST(BFloat16, EveryCodeSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const float value = bf16_to_float(bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(bfloat16(value)))) << bits;
    } else {
      ASSERT_EQ(bfloat16(value).bits, bits);
    }
  }
}

double nearest_bf16(float value) {
  if (value == 0.0F || std::isinf(value)) {
    return static_cast<double>(value);
  }
  const double exact = static_cast<double>(value);
  const double unit = std::ldexp(1.0, std::max(std::ilogb(exact), -126) - 7);
  const double rounded = std::nearbyint(exact / unit) * unit;  // to nearest even, the default mode
  return std::fabs(rounded) >= std::ldexp(1.0, 128) ? std::copysign(HUGE_VAL, rounded) : rounded;
}

TEST(BFloat16, RoundsToNearestEven) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  std::vector<float> values = {
      0.0F, -0.0F, kInfinity, -kInfinity, std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()};
  for (std::uint32_t bits = 0; bits < 0x7f80U; ++bits) {  // every midpoint, and its neighbours
    const float midpoint = std::bit_cast<float>((bits << 16) | 0x8000U);
    values.insert(values.end(), {midpoint, std::nextafter(midpoint, 0.0F), std::nextafter(midpoint, kInfinity)});
  }
  for (int i = 0; i < 500'000; ++i) {
    values.push_back(any_float(random));
  }
  for (const float value : values) {
    for (const float signed_value : {value, -value}) {
      const float rounded = static_cast<float>(bfloat16(signed_value));
      if (std::isnan(signed_value)) {
        ASSERT_TRUE(std::isnan(rounded));
      } else {
        ASSERT_EQ(static_cast<double>(rounded), nearest_bf16(signed_value)) << std::hexfloat << signed_value;
        ASSERT_EQ(std::signbit(rounded), std::signbit(signed_value));
      }
    }
  }
}

TEST(Float16, EveryCodeDecodes) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    float16 half;
    half.bits = static_cast<std::uint16_t>(bits);
    const float value = static_cast<float>(half);
    const std::uint32_t magnitude = bits & 0x7fffU;
    if (magnitude > 0x7c00U) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else if (magnitude == 0x7c00U) {
      EXPECT_EQ(value, (bits & 0x8000U) != 0 ? -kInfinity : kInfinity);
    } else {
      ASSERT_EQ(static_cast<double>(value), decode(bits, 5, 10)) << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000U) != 0) << bits;
    }
  }
}

TEST(Float8E4M3, EveryCodeDecodes) {
  for (std::uint32_t bits = 0; bits < 256; ++bits) {
    const float value = e4m3_to_float(bits);
    if ((bits & 0x7fU) == 0x7fU) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(static_cast<double>(value), decode(bits, 4, 3)) << bits;
      EXPECT_EQ(std::signbit(value), (bits & 0x80U) != 0) << bits;
      EXPECT_EQ(float8_e4m3(value).bits, bits);
    }
  }
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0F);
}

/// The code whose value is nearest, the even one of two, found by looking at all of them.
std::uint8_t nearest_e4m3(float value) {
  const double exact = std::fabs(static_cast<double>(value));
  std::uint8_t best = 0;
  double distance = HUGE_VAL;
  for (std::uint32_t code = 0; code <= 0x7eU; ++code) {
    const double candidate = std::fabs(decode(code, 4, 3) - std::min(exact, 448.0));
    if (candidate < distance || (candidate == distance && code % 2 == 0)) {
      best = static_cast<std::uint8_t>(code);
      distance = candidate;
    }
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80U : 0U));
}

TEST(Float8E4M3, RoundsToNearestEvenAndSaturates) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  std::vector<float> values = {0.0F, -0.0F, kInfinity, -kInfinity, 464.0F, 480.0F, std::nextafter(448.0F, 0.0F)};
  for (std::uint32_t code = 0; code < 0x7eU; ++code) {  // every midpoint, and its neighbours
    const auto midpoint = static_cast<float>((decode(code, 4, 3) + decode(code + 1, 4, 3)) / 2.0);
    values.insert(values.end(), {midpoint, std::nextafter(midpoint, 0.0F), std::nextafter(midpoint, kInfinity)});
  }
  for (std::uint32_t bits = 0; bits < 0x7f80U; ++bits) {
    values.push_back(bf16_to_float(bits));
  }
  for (int i = 0; i < 50'000; ++i) {
    values.push_back(static_cast<float>(std::ldexp(random.uniform(), static_cast<int>(random.below(24)) - 13)));
    values.push_back(any_float(random));
  }
  for (const float value : values) {
    for (const float signed_value : {value, -value}) {
      if (std::isnan(signed_value)) {
        ASSERT_EQ(float8_e4m3(signed_value).bits & 0x7f, 0x7f);
      } else {
        ASSERT_EQ(float8_e4m3(signed_value).bits, nearest_e4m3(signed_value)) << std::hexfloat << signed_value;
      }
    }
  }
  EXPECT_EQ(float8_e4m3(kNan).bits & 0x7f, 0x7f);
}

TEST(Float8E8M0, EveryCodeIsAPowerOfTwo) {
  for (int bits = 0; bits < 255; ++bits) {
    float8_e8m0 value;
    value.bits = static_cast<std::uint8_t>(bits);
    EXPECT_EQ(static_cast<double>(static_cast<float>(value)), std::ldexp(1.0, bits - 127));
  }
  float8_e8m0 nan;
  nan.bits = 0xff;
  EXPECT_TRUE(std::isnan(static_cast<float>(nan)));
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::float32), 4);
  EXPECT_EQ(size_of(DType::bfloat16), 2);
  EXPECT_EQ(size_of(DType::float16), 2);
  EXPECT_EQ(size_of(DType::float8_e4m3), 1);
  EXPECT_EQ(size_of(DType::float8_e8m0), 1);
  EXPECT_EQ(size_of(DType::int32), 4);
  EXPECT_EQ(size_of(DType::int64), 8);
  EXPECT_EQ(size_of(DType::uint8), 1);
  EXPECT_EQ(name_of(DType::float32), "float32");
  EXPECT_EQ(name_of(DType::bfloat16), "bfloat16");
  static_assert(sizeof(bfloat16) == 2 && sizeof(float16) == 2 && sizeof(float8_e4m3) == 1);
}

TEST(DType, NamesAreTakenAsPeopleSpellThem) {
  for (const char* name : {"float32", "fp32", "FP32", "Float32"}) {
    EXPECT_EQ(compute_from_name(name), DType::float32) << name;
    EXPECT_EQ(cache_format_from_name(name), CacheFormat::float32) << name;
  }
  for (const char* name : {"bfloat16", "bf16", "BF16"}) {
    EXPECT_EQ(compute_from_name(name), DType::bfloat16) << name;
    EXPECT_EQ(cache_format_from_name(name), CacheFormat::bfloat16) << name;
  }
  EXPECT_EQ(cache_format_from_name("fp8"), CacheFormat::fp8);
  EXPECT_EQ(cache_format_from_name("fp8_e4m3"), CacheFormat::fp8);
  EXPECT_EQ(cache_format_from_name("fp8_ds_mla"), CacheFormat::fp8_ds_mla);
  for (const char* name : {"", "float", "float16", "fp16", "half", "bf", "fp8", "bf16 ", "auto", "fp8_e5m2"}) {
    EXPECT_EQ(compute_from_name(name), std::nullopt) << name;
    EXPECT_TRUE(std::string_view(name) == "fp8" || !cache_format_from_name(name)) << name;
  }
}

TEST(LayoutText, SaysHowFarAnAddressIsOff) {
  alignas(64) static const char bytes[64] = {};
  EXPECT_EQ(layout_text(bytes + 8, 64), "an address 8 bytes past such a one");
  EXPECT_EQ(layout_text(bytes + 33, 16, {24}), "an address 1 byte past such a one, stride 24 bytes");
  EXPECT_EQ(layout_text(bytes, 16, {24, 96}, "elements"), "such an address, strides 24 and 96 elements");
}

}  // namespace
}  // namespace headrace
