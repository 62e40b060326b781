// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/cache.h"
#include "headrace/dtype.h"
#include "headrace/geometry.h"

namespace headrace::cache {

/// Reads and writes single rows of the paged cache in one format.
class RowCodec {
 public:
  /// @param compute  float32 or bfloat16: what dequantised values are rounded to, once
  RowCodec(CacheFormat format, const Geometry& geometry, DType compute, float scale) noexcept;

  /// row -> latent [R] and rope [rope], rounded to the compute dtype. T is float (a container for rounded values) or
  /// bfloat16 (compute dtype bfloat16 only). `rope` is not touched for NoPE.
  template <class T>
  void read(const std::byte* row, T* latent, T* rope) const noexcept;

  /// latent [R] and rope [rope] -> row of `row_bytes` bytes; of those only the format's own are written.
  void write(const float* latent, const float* rope, std::byte* row, std::int64_t row_bytes) const noexcept;

 private:
  CacheFormat format_;
  DType compute_;
  float scale_;
  std::int64_t latent_dim_;
  std::int64_t rope_dim_;
};

}  // namespace headrace::cache
