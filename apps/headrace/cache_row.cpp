// SPDX-License-Identifier: Apache-2.0
#include "cache_row.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>

#include "headrace/dtype.h"

namespace headrace::app {
namespace {

constexpr unsigned kLargestCode = 126;

/// What the codes without a sign stand for, ascending.
std::array<double, kLargestCode + 1> code_values() {
  std::array<double, kLargestCode + 1> values{};
  for (unsigned code = 0; code <= kLargestCode; ++code) {
    const auto exponent = static_cast<int>(code / 8);
    const auto mantissa = static_cast<double>(code % 8);
    values.at(code) = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1.0 + mantissa / 8.0, exponent - 7);
  }
  return values;
}

template <class T>
void put(std::vector<std::byte>& row, const T& value) {
  std::array<std::byte, sizeof(T)> bytes{};
  std::memcpy(bytes.data(), &value, sizeof(T));
  row.insert(row.end(), bytes.begin(), bytes.end());
}

void put_codes(std::vector<std::byte>& row, std::span<const float> values, float scale) {
  std::transform(values.begin(), values.end(), std::back_inserter(row),
                 [scale](float value) { return e4m3_code(value / scale); });
}

template <class T>
void put_plain(std::vector<std::byte>& row, std::span<const float> values) {
  for (const float value : values) {
    put(row, static_cast<T>(value));
  }
}

void put_fp8_ds_mla(std::vector<std::byte>& row, std::span<const float> latent, std::span<const float> rope_key) {
  constexpr std::size_t kGroup = 128;
  std::vector<float> scales;
  for (std::size_t begin = 0; begin + kGroup <= latent.size(); begin += kGroup) {
    float largest = 1e-4F;
    for (const float value : latent.subspan(begin, kGroup)) {
      largest = std::max(largest, std::abs(value));
    }
    scales.push_back(largest / 448.0F);
    put_codes(row, latent.subspan(begin, kGroup), scales.back());
  }
  put_plain<float>(row, scales);
  put_plain<bfloat16>(row, rope_key);
}

}  // namespace

std::byte e4m3_code(float value) {
  static const std::array<double, kLargestCode + 1> kValues = code_values();
  if (std::isnan(value)) {
    return std::byte{0x7f};
  }
  const double magnitude = std::abs(static_cast<double>(value));
  const auto* const above = std::lower_bound(kValues.begin(), kValues.end(), magnitude);
  auto code = static_cast<unsigned>(above - kValues.begin());
  if (code > kLargestCode) {
    code = kLargestCode;
  } else if (code > 0) {
    const double up = kValues.at(code) - magnitude;
    const double down = magnitude - kValues.at(code - 1);
    code -= down < up || (down == up && code % 2 == 1) ? 1U : 0U;
  }
  return static_cast<std::byte>(code + (std::signbit(value) ? 128U : 0U));
}

std::vector<std::byte> cache_row(CacheFormat format, float scale, std::span<const float> latent,
                                 std::span<const float> rope_key) {
  std::vector<std::byte> row;
  switch (format) {
    case CacheFormat::float32:
      put_plain<float>(row, latent);
      put_plain<float>(row, rope_key);
      break;
    case CacheFormat::bfloat16:
      put_plain<bfloat16>(row, latent);
      put_plain<bfloat16>(row, rope_key);
      break;
    case CacheFormat::fp8:
      put_codes(row, latent, scale);
      put_codes(row, rope_key, scale);
      break;
    case CacheFormat::fp8_ds_mla:
      put_fp8_ds_mla(row, latent, rope_key);
      break;
  }
  return row;
}

}  // namespace headrace::app
