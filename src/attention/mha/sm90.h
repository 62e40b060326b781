// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/request_rows.h"
#include "device/cuda/stream.h"
#include "headrace/geometry.h"

/// Flash attention on Hopper tensor cores over up-projected keys: what a launch reads and writes. Every pointer is to
/// device memory; nothing here needs a CUDA header.
namespace headrace::attention::mha::sm90 {

/// Query rows a tile holds, of one head of one request.
inline constexpr std::int64_t kQueryTile = 128;
/// 32-bit mask words of a row in a key tile, which has at most 128 columns.
inline constexpr std::int64_t kMaskWords = 4;

/// The part of a request that a pass works on: some of its query rows, some of its keys. Positions are the request's
/// own; the kernel clips them with the exact lengths it reads on the device.
struct RequestSpan {
  std::int32_t rows_begin = 0;  ///< of the query rows at positions [rows_begin, rows_end), clipped to the new tokens,
  std::int32_t rows_end = 0;    ///< those counted [first_row, first_row + row_count)
  std::int32_t first_row = 0;
  std::int32_t row_count = 0;
  std::int32_t keys_begin = 0;  ///< keys at positions [keys_begin, keys_end) are what the pass has up-projected
  std::int32_t keys_end = 0;
  std::int64_t first_key = 0;        ///< row of the packed keys that holds position keys_begin
  std::int64_t first_slice_row = 0;  ///< row of the mask, and of earlier results, that belongs to row first_row
};

/// The rows of a span among those that its request has: number i of them is row first_row + i.
[[nodiscard]] HEADRACE_HOST_DEVICE constexpr cache::RequestRows rows_of(const RequestSpan& span,
                                                                        const cache::RequestRows& of_request) noexcept {
  return of_request.within(span.rows_begin, span.rows_end).slice(span.first_row, span.row_count);
}

/// One tile of query rows, for every head: rows first_row + [tile * kQueryTile, ...) of a request's span.
struct QueryTile {
  std::int32_t request = 0;
  std::int32_t tile = 0;
};

/// A matrix for each head: element (row, head, column) at data[row * row_stride + head * head_stride + column].
struct HeadMatrix {
  const void* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t row_stride = 0;   ///< elements; a multiple of 8
  std::int64_t head_stride = 0;  ///< elements; a multiple of 8; 0 where all heads share the matrix
};

/// One launch: for every query row of its tiles, attention to the keys of the pass.
struct Pass {
  Geometry geometry;
  float scale = 0.0F;
  bool causal = true;  ///< a row attends to keys up to its own position; else to every key of the pass

  HeadMatrix query;     ///< [T, H, nope + rope] bfloat16
  HeadMatrix key_nope;  ///< [keys, H, nope] bfloat16: a window on the up-projection
  HeadMatrix key_rope;  ///< [keys, rope] bfloat16, head_stride 0; unused for NoPE
  HeadMatrix value;     ///< [keys, H, v] bfloat16: another window on it

  const std::int32_t* query_start = nullptr;  ///< [B + 1] exact
  const std::int32_t* seq_len = nullptr;      ///< [B] exact
  const RequestSpan* spans = nullptr;         ///< entry b of request b, for those that tiles name; others are not read
  const QueryTile* tiles = nullptr;           ///< [num_tiles], those of most work first
  std::int64_t num_tiles = 0;
  std::int32_t* counter = nullptr;  ///< scratch of 4 bytes
  bool counter_is_clear = false;    ///< what is queued before has set it to 0; else the launch queues that

  /// Bit masks, or null: kMaskWords words for each row of each key tile, at mask[(tile * mask_rows + row) *
  /// kMaskWords]. Bit 2 j + c of word i is column 8 j + 2 i + c of the tile: a thread of the kernel holds these columns
  /// of a row in its accumulators, so that one word is all it reads. With a mask, `causal` only bounds which key tiles
  /// are visited.
  const std::uint32_t* mask = nullptr;
  std::int64_t mask_rows = 0;

  /// What passes over earlier keys of the same rows gave, or null; this pass's result is merged with it, in float32, by
  /// their log-sum-exps. Indexed by slice row.
  const float* earlier = nullptr;      ///< [slice rows, H, v] contiguous
  const float* earlier_lse = nullptr;  ///< [slice rows, H] contiguous

  /// Where results go: to the tokens' rows, or, for a later pass to merge with, to slice rows (in float32). The latter
  /// may be what `earlier` and `earlier_lse` point to.
  bool to_slice = false;
  void* out = nullptr;  ///< [T or slice rows, H, v], where T is query.rows
  bool out_float32 = false;
  std::int64_t out_row_stride = 0;   ///< elements; a multiple of 8
  std::int64_t out_head_stride = 0;  ///< elements; a multiple of 8
  float* lse = nullptr;              ///< [T or slice rows, H], or null
  std::int64_t lse_row_stride = 0;   ///< elements; heads are next to each other
  const float* sink = nullptr;       ///< [H], or null; only where this pass is the last
};

/// Reasons why the kernel cannot serve a geometry; empty when it can.
[[nodiscard]] std::vector<std::string> unmet_requirements(const Geometry& geometry);
/// Loads the kernels of a geometry that it can serve onto the current device, which a launch expects. @throws Error
void load(const Geometry& geometry);
/// Key columns of a tile: context blocks start at multiples of it, and masks are laid out by it.
[[nodiscard]] std::int64_t key_tile(const Geometry& geometry) noexcept;

/// Queues a pass on a stream.
/// @param multiprocessors  of the device, which is current
/// @throws Error when the geometry is not served, a stride or an address does not suit the copy engine, or CUDA
///         reports an error
void launch(const Pass& pass, int multiprocessors, Stream stream);

}  // namespace headrace::attention::mha::sm90
