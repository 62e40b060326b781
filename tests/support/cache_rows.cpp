// SPDX-License-Identifier: Apache-2.0
#include "support/cache_rows.h"

#include <algorithm>
#include <cmath>

#include "headrace/dtype.h"

namespace headrace::test {
namespace {

template <class T>
void put(std::vector<std::byte>& row, T value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  row.insert(row.end(), bytes.begin(), bytes.end());
}

template <class T>
void put_all(std::vector<std::byte>& row, std::span<const float> values, float divisor = 1.0F) {
  for (const float value : values) {
    put(row, T(value / divisor));
  }
}

void put_ds_mla(std::vector<std::byte>& row, std::span<const float> latent, std::span<const float> rope_key) {
  std::vector<float> scales;
  for (std::size_t group = 0; group < latent.size(); group += 128) {
    const std::span<const float> values = latent.subspan(group, 128);
    float amax = 0.0F;
    for (const float value : values) {
      amax = std::max(amax, std::fabs(value));
    }
    scales.push_back(std::max(amax, 1e-4F) / 448.0F);
    put_all<float8_e4m3>(row, values, scales.back());
  }
  for (const float scale : scales) {
    put(row, scale);
  }
  put_all<bfloat16>(row, rope_key);
}

}  // namespace

std::vector<std::byte> encode_row(CacheFormat format, std::span<const float> latent, std::span<const float> rope_key,
                                  float scale) {
  std::vector<std::byte> row;
  switch (format) {
    case CacheFormat::float32:
      put_all<float>(row, latent);
      put_all<float>(row, rope_key);
      break;
    case CacheFormat::bfloat16:
      put_all<bfloat16>(row, latent);
      put_all<bfloat16>(row, rope_key);
      break;
    case CacheFormat::fp8:
      put_all<float8_e4m3>(row, latent, scale);
      put_all<float8_e4m3>(row, rope_key, scale);
      break;
    case CacheFormat::fp8_ds_mla:
      put_ds_mla(row, latent, rope_key);
      break;
  }
  return row;
}

std::int64_t row_alignment(CacheFormat format) {
  switch (format) {
    case CacheFormat::float32:
    case CacheFormat::fp8_ds_mla:
      return 4;
    case CacheFormat::bfloat16:
      return 2;
    case CacheFormat::fp8:
      return 1;
  }
  return 1;
}

}  // namespace headrace::test
