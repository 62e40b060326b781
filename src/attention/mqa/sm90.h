// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/mqa/union_list.h"
#include "device/cuda/stream.h"
#include "headrace/cache.h"
#include "headrace/geometry.h"

/// Attention over gathered latents on Hopper tensor cores: what a launch reads and writes. Every pointer is to device
/// memory; nothing here needs a CUDA header.
namespace headrace::attention::mqa::sm90 {

/// Where the keys' rows lie, and in which format. The kernel is made for an address and strides that are multiples of
/// 16 bytes, and for other formats than float32. Others are read value by value, which is slow.
struct KeyRows {
  const std::byte* data = nullptr;
  std::int64_t row_stride = 0;  ///< bytes
  CacheFormat format = CacheFormat::bfloat16;
  float scale = 1.0F;  ///< of fp8

  /// In pages, as a cache has them, unless first_row says that they lie one after another.
  const std::int32_t* block_table = nullptr;
  std::int64_t table_row_stride = 0;
  std::int64_t table_stride = 0;
  std::int64_t table_width = 0;
  std::int64_t num_pages = 0;
  std::int64_t page_size = 0;
  std::int64_t page_stride = 0;  ///< bytes

  /// [B]: the keys of request b are rows first_row[b] and following, of bfloat16; or null.
  const std::int64_t* first_row = nullptr;
  std::int64_t num_rows = 0;  ///< in all; what would lie beyond is zeros
};

/// The rows of a cache, where a block table says.
[[nodiscard]] KeyRows rows_in_pages(CacheFormat format, const CacheView& cache,
                                    const View<const std::int32_t>& block_table);

/// One launch: the rows of some tiles attend to the keys of the tiles' lists.
struct Pass {
  std::int64_t heads = 0;
  std::int64_t tokens = 0;    ///< T; tiles that name others, or other requests, are left out
  std::int64_t requests = 0;  ///< B
  bool has_rope = false;      ///< a rope key and query of 64 columns
  float scale = 0.0F;

  /// Absorbed queries [rows, H, 512] bfloat16, contiguous. The rows of tile t are those of its tokens where
  /// `rows_are_tokens`, else group * t and following.
  const void* query = nullptr;
  bool rows_are_tokens = false;
  /// The rope part of the queries: element (token, head, column) at query_rope[token * stride + head * head_stride +
  /// column], bfloat16. As for keys, other addresses and strides than multiples of 16 bytes are slow.
  const void* query_rope = nullptr;
  std::int64_t query_rope_stride = 0;
  std::int64_t query_rope_head_stride = 0;

  KeyRows keys;
  UnionLists lists;

  /// What comes out, laid out as `query` is, and may be `query` itself.
  void* attended = nullptr;
  float* lse = nullptr;             ///< [T, H], or null
  std::int64_t lse_row_stride = 0;  ///< elements; heads are next to each other
  const float* sink = nullptr;      ///< [H], or null
  std::int32_t* counter = nullptr;  ///< scratch of 4 bytes
  bool counter_is_clear = false;    ///< what is queued before has set it to 0; else the launch queues that
};

/// Reasons why the kernel cannot serve a geometry; empty when it can.
[[nodiscard]] std::vector<std::string> unmet_requirements(const Geometry& geometry);

/// Loads the kernels onto the current device, which a launch expects. @throws Error
void load();

/// Queues a pass on a stream.
/// @param multiprocessors  of the device, which is current
/// @throws Error when the address of `query` or `attended` does not suit 16-byte copies, or CUDA reports an error
void launch(const Pass& pass, int multiprocessors, Stream stream);

}  // namespace headrace::attention::mqa::sm90
