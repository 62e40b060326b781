// SPDX-License-Identifier: Apache-2.0
#include "cache/row_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cache/fp8_ds_mla.h"
#include "core/e4m3.h"

namespace headrace::cache {
namespace {

float round_to(DType compute, float value) noexcept {
  return compute == DType::bfloat16 ? static_cast<float>(bfloat16(value)) : value;
}

/// `source` holds n values of type Stored, at any alignment a row stride allows; each is rounded once to `compute`.
template <class Stored, class T>
void read_plain(const std::byte* source, std::int64_t n, DType compute, T* out) noexcept {
  for (std::int64_t i = 0; i < n; ++i) {
    Stored value;
    std::memcpy(&value, source + i * static_cast<std::int64_t>(sizeof(Stored)), sizeof(Stored));
    out[i] = static_cast<T>(round_to(compute, static_cast<float>(value)));
  }
}

template <class T>
void read_e4m3(const std::byte* source, std::int64_t n, float scale, DType compute, T* out) noexcept {
  const E4m3Table& decode = E4m3Table::get();
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<T>(round_to(compute, decode(source[i]) * scale));
  }
}

template <class Stored>
void write_plain(const float* values, std::int64_t n, std::byte* out) noexcept {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<Stored>(values[i]);
    std::memcpy(out + i * static_cast<std::int64_t>(sizeof(Stored)), &value, sizeof(Stored));
  }
}

void write_e4m3(const float* values, std::int64_t n, float scale, std::byte* out) noexcept {
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<std::byte>(float8_e4m3(values[i] / scale).bits);
  }
}

}  // namespace

RowCodec::RowCodec(CacheFormat format, const Geometry& geometry, DType compute, float scale) noexcept
    : format_(format),
      compute_(compute),
      scale_(scale),
      latent_dim_(geometry.kv_lora_rank),
      rope_dim_(geometry.qk_rope_head_dim) {}

template <class T>
void RowCodec::read(const std::byte* row, T* latent, T* rope) const noexcept {
  switch (format_) {
    case CacheFormat::float32:
      read_plain<float>(row, latent_dim_, compute_, latent);
      read_plain<float>(row + 4 * latent_dim_, rope_dim_, compute_, rope);
      return;
    case CacheFormat::bfloat16:
      read_plain<bfloat16>(row, latent_dim_, compute_, latent);
      read_plain<bfloat16>(row + 2 * latent_dim_, rope_dim_, compute_, rope);
      return;
    case CacheFormat::fp8:
      read_e4m3(row, latent_dim_, scale_, compute_, latent);
      read_e4m3(row + latent_dim_, rope_dim_, scale_, compute_, rope);
      return;
    case CacheFormat::fp8_ds_mla:
      for (std::int64_t group = 0; group < kScaleGroups; ++group) {
        float scale = 0.0F;
        std::memcpy(&scale, row + kScaleOffset + group * 4, sizeof scale);
        read_e4m3(row + group * kScaleGroupSize, kScaleGroupSize, scale, compute_, latent + group * kScaleGroupSize);
      }
      read_plain<bfloat16>(row + kRopeOffset, rope_dim_, compute_, rope);
      return;
  }
}

template void RowCodec::read<float>(const std::byte*, float*, float*) const noexcept;
template void RowCodec::read<bfloat16>(const std::byte*, bfloat16*, bfloat16*) const noexcept;

void RowCodec::write(const float* latent, const float* rope, std::byte* row, std::int64_t row_bytes) const noexcept {
  switch (format_) {
    case CacheFormat::float32:
      write_plain<float>(latent, latent_dim_, row);
      write_plain<float>(rope, rope_dim_, row + 4 * latent_dim_);
      return;
    case CacheFormat::bfloat16:
      write_plain<bfloat16>(latent, latent_dim_, row);
      write_plain<bfloat16>(rope, rope_dim_, row + 2 * latent_dim_);
      return;
    case CacheFormat::fp8:
      write_e4m3(latent, latent_dim_, scale_, row);
      write_e4m3(rope, rope_dim_, scale_, row + latent_dim_);
      return;
    case CacheFormat::fp8_ds_mla:
      for (std::int64_t group = 0; group < kScaleGroups; ++group) {
        const float* values = latent + group * kScaleGroupSize;
        float largest = 0.0F;
        for (std::int64_t i = 0; i < kScaleGroupSize; ++i) {
          largest = std::max(largest, std::abs(values[i]));
        }
        const float scale = std::max(largest, kSmallestAmax) / kLargestE4m3;
        write_e4m3(values, kScaleGroupSize, scale, row + group * kScaleGroupSize);
        std::memcpy(row + kScaleOffset + group * 4, &scale, sizeof scale);
      }
      write_plain<bfloat16>(rope, rope_dim_, row + kRopeOffset);
      if (rope_dim_ == 0 && row_bytes >= kRowBytes) {
        std::fill_n(row + kRopeOffset, kRowBytes - kRopeOffset, std::byte{0});
      }
      return;
  }
}

}  // namespace headrace::cache
