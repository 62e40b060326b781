// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "headrace/export.h"
#include "headrace/geometry.h"
#include "headrace/view.h"

namespace headrace {

/// How the paged cache stores a token's latent and rope key. Bytes a token:
///   float32     4 (R + rope)
///   bfloat16    2 (R + rope)
///   fp8         R + rope: e4m3, one scale for the tensor, given by the caller
///   fp8_ds_mla  656, R = 512 only: 512 e4m3; 4 float32 scales, each max(amax, 1e-4)/448 of 128 values; 64 bfloat16 of
///               rope key. NoPE: rope dim 0, rows of 528 bytes, or of 656 where the view's row_bytes says so; then
///               append writes the rope bytes as zero, and nothing reads them.
enum class CacheFormat : std::uint8_t { float32, bfloat16, fp8, fp8_ds_mla };

/// "float32", "bf16", "fp8", "fp8_ds_mla": as --kv-cache-dtype spells it.
[[nodiscard]] HEADRACE_EXPORT std::string_view name_of(CacheFormat format) noexcept;

/// The least bytes of a row: 528 for fp8_ds_mla without rope. @throws Error where the format cannot hold the geometry
[[nodiscard]] HEADRACE_EXPORT std::int64_t cache_row_bytes(CacheFormat format, const Geometry& geometry);

/// A paged cache that somebody else owns. Token `slot` lies at
/// data + (slot / page_size) * page_stride + (slot % page_size) * row_stride; strides are in bytes.
template <class Byte>
struct BasicCacheView {
  Byte* data = nullptr;
  std::int64_t num_pages = 0;
  std::int64_t page_size = 0;    ///< tokens a page, >= 1
  std::int64_t page_stride = 0;  ///< bytes from a page to the next, at least what its rows take
  std::int64_t row_stride = 0;   ///< bytes from a token to the next, >= the row's bytes
  float scale = 1.0F;            ///< fp8 only: value = e4m3 * scale; finite and > 0
  std::int64_t row_bytes = 0;  ///< bytes of a row that are its own; 0: the least the format needs. Say 656 for NoPE in
                               ///< fp8_ds_mla rows of 656 bytes. What lies between rows is never written.

  [[nodiscard]] std::int64_t num_slots() const noexcept { return num_pages * page_size; }
  /// The row of a slot in [0, num_slots()).
  [[nodiscard]] Byte* row(std::int64_t slot) const noexcept {
    return data + (slot / page_size) * page_stride + (slot % page_size) * row_stride;
  }
  /// A mutable cache converts to a read-only one.
  template <class Other, std::enable_if_t<std::is_same_v<Other, const Byte> && !std::is_const_v<Byte>, int> = 0>
  operator BasicCacheView<Other>() const noexcept {  // NOLINT(google-explicit-constructor)
    return {data, num_pages, page_size, page_stride, row_stride, scale, row_bytes};
  }
};

using CacheView = BasicCacheView<const std::byte>;
using MutableCacheView = BasicCacheView<std::byte>;

/// Throws Error naming `name` unless the view's sizes, strides, alignment and scale suit rows of `row_bytes` bytes.
HEADRACE_EXPORT void validate_cache(std::string_view name, const CacheView& cache, std::int64_t row_bytes,
                                    std::int64_t alignment);
/// The same for latent rows of a format. @throws Error
HEADRACE_EXPORT void validate_cache(const CacheView& cache, CacheFormat format, const Geometry& geometry);

/// Writes new tokens' latents and rope keys to the cache, in its format.
/// @param latent        [T, R] float32 or bfloat16, normalised
/// @param rope_key      [T, rope] of the same dtype, rope applied; ignored when the rope dim is 0
/// @param slot_mapping  [T] the slot of each token; -1 skips it. Two tokens must not name one slot.
/// @throws Error for shapes, dtypes or a slot outside [-1, num_slots()); nothing is written then
HEADRACE_EXPORT void append(const Geometry& geometry, CacheFormat format, const MutableCacheView& cache,
                            ConstAnyView latent, ConstAnyView rope_key, View<const std::int64_t> slot_mapping,
                            int threads = 0);

}  // namespace headrace
