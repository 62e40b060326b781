// SPDX-License-Identifier: Apache-2.0
#include "headrace/cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cache/fp8_ds_mla.h"
#include "cache/row_codec.h"
#include "device/parallel.h"
#include "headrace/error.h"

namespace headrace {
namespace {

std::int64_t alignment_of(CacheFormat format) noexcept {
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

/// One token's values as float32, whatever the input's dtype.
void load_row(const ConstAnyView& matrix, std::int64_t row, std::vector<float>& out) {
  const auto n = static_cast<std::int64_t>(out.size());
  if (matrix.dtype() == DType::float32) {
    const auto values = matrix.as<float>("latent");
    for (std::int64_t i = 0; i < n; ++i) {
      out[static_cast<std::size_t>(i)] = values(row, i);
    }
  } else {
    const auto values = matrix.as<bfloat16>("latent");
    for (std::int64_t i = 0; i < n; ++i) {
      out[static_cast<std::size_t>(i)] = static_cast<float>(values(row, i));
    }
  }
}

void expect_compute_dtype(std::string_view name, DType dtype) {
  if (dtype != DType::float32 && dtype != DType::bfloat16) {
    throw Error(std::string(name), "float32 or bfloat16", std::string(name_of(dtype)));
  }
}

}  // namespace

std::string_view name_of(CacheFormat format) noexcept {
  switch (format) {
    case CacheFormat::float32:
      return "float32";
    case CacheFormat::bfloat16:
      return "bf16";
    case CacheFormat::fp8:
      return "fp8";
    case CacheFormat::fp8_ds_mla:
      return "fp8_ds_mla";
  }
  return "unknown";
}

std::int64_t cache_row_bytes(CacheFormat format, const Geometry& geometry) {
  switch (format) {
    case CacheFormat::float32:
      return 4 * geometry.latent_dim();
    case CacheFormat::bfloat16:
      return 2 * geometry.latent_dim();
    case CacheFormat::fp8:
      return geometry.latent_dim();
    case CacheFormat::fp8_ds_mla:
      if (geometry.kv_lora_rank != cache::kLatentValues ||
          (geometry.qk_rope_head_dim != 0 && geometry.qk_rope_head_dim != cache::kRopeValues)) {
        throw UnsupportedError("cache format fp8_ds_mla", "kv_lora_rank 512 and qk_rope_head_dim 0 or 64",
                               fmt::format("{} and {}", geometry.kv_lora_rank, geometry.qk_rope_head_dim));
      }
      return geometry.qk_rope_head_dim == 0 ? cache::kRopeOffset : cache::kRowBytes;
  }
  return 0;
}

void validate_cache(std::string_view name, const CacheView& cache, std::int64_t row_bytes, std::int64_t alignment) {
  const std::string who(name);
  if (cache.num_pages < 0 || cache.page_size < 1) {
    throw Error(who, "num_pages >= 0 and page_size >= 1", fmt::format("{} and {}", cache.num_pages, cache.page_size));
  }
  if (cache.num_pages > std::numeric_limits<std::int32_t>::max() ||
      cache.page_size > std::numeric_limits<std::int32_t>::max()) {
    throw Error(who, "num_pages and page_size below 2^31", fmt::format("{} and {}", cache.num_pages, cache.page_size));
  }
  if (cache.row_bytes != 0 && (cache.row_bytes < row_bytes || cache.row_bytes > cache.row_stride)) {
    throw Error(who + ".row_bytes", fmt::format("0, or from {} to the row stride", row_bytes),
                std::to_string(cache.row_bytes));
  }
  if (cache.row_stride < row_bytes) {
    throw Error(who + ".row_stride", fmt::format("at least {} bytes", row_bytes), std::to_string(cache.row_stride));
  }
  // The last row of a page may end where its bytes end; padding after it is not required.
  const std::int64_t own_bytes = std::max(row_bytes, cache.row_bytes);
  std::int64_t page_bytes = 0;
  std::int64_t extent = 0;
  if (__builtin_mul_overflow(cache.page_size - 1, cache.row_stride, &page_bytes) ||
      __builtin_add_overflow(page_bytes, own_bytes, &page_bytes) ||
      __builtin_mul_overflow(cache.num_pages, std::max(page_bytes, cache.page_stride), &extent)) {
    throw Error(who, "fewer than 2^63 bytes",
                fmt::format("{} pages, {} bytes apart, of {} rows, {} bytes apart", cache.num_pages, cache.page_stride,
                            cache.page_size, cache.row_stride));
  }
  if (cache.num_pages > 1 && cache.page_stride < page_bytes) {
    throw Error(who + ".page_stride", fmt::format("at least the {} bytes of a page", page_bytes),
                std::to_string(cache.page_stride));
  }
  if (cache.num_pages > 0 && cache.data == nullptr) {
    throw Error(who + ".data", "an address", "null");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(cache.data);
  if (address % static_cast<std::uintptr_t>(alignment) != 0 || cache.row_stride % alignment != 0 ||
      (cache.num_pages > 1 && cache.page_stride % alignment != 0)) {
    throw Error(who, fmt::format("address, page stride and row stride divisible by {}", alignment),
                fmt::format("{:#x}, {} and {}", address, cache.page_stride, cache.row_stride));
  }
  if (!std::isfinite(cache.scale) || cache.scale <= 0.0F) {
    throw Error(who + ".scale", "finite and > 0", fmt::format("{}", cache.scale));
  }
}

void validate_cache(const CacheView& cache, CacheFormat format, const Geometry& geometry) {
  validate_cache("cache", cache, cache_row_bytes(format, geometry), alignment_of(format));
}

void append(const Geometry& geometry, CacheFormat format, const MutableCacheView& cache, ConstAnyView latent,
            ConstAnyView rope_key, View<const std::int64_t> slot_mapping, int threads) {
  geometry.validate();
  validate_cache(cache, format, geometry);
  latent.expect("latent", {-1, geometry.kv_lora_rank});
  expect_compute_dtype("latent", latent.dtype());
  const std::int64_t tokens = latent.dim(0);
  if (geometry.qk_rope_head_dim != 0) {
    rope_key.expect("rope_key", {tokens, geometry.qk_rope_head_dim});
    expect_dtype("rope_key", latent.dtype(), rope_key.dtype());
  }
  slot_mapping.expect("slot_mapping", {tokens});
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t slot = slot_mapping(t);
    if (slot < -1 || slot >= cache.num_slots()) {
      throw Error(fmt::format("slot_mapping[{}]", t), fmt::format("-1 or a slot in [0, {})", cache.num_slots()),
                  std::to_string(slot));
    }
  }

  const cache::RowCodec codec(format, geometry, latent.dtype(), cache.scale);
  constexpr std::int64_t kTokensATask = 64;
  device::parallel_for((tokens + kTokensATask - 1) / kTokensATask, threads, [&](std::int64_t task, int) {
    std::vector<float> latent_row(static_cast<std::size_t>(geometry.kv_lora_rank));
    std::vector<float> rope_row(static_cast<std::size_t>(geometry.qk_rope_head_dim));
    const std::int64_t end = std::min(tokens, (task + 1) * kTokensATask);
    for (std::int64_t t = task * kTokensATask; t < end; ++t) {
      if (slot_mapping(t) < 0) {
        continue;
      }
      load_row(latent, t, latent_row);
      load_row(rope_key, t, rope_row);
      codec.write(latent_row.data(), rope_row.data(), cache.row(slot_mapping(t)), cache.row_bytes);
    }
  });
}

}  // namespace headrace
