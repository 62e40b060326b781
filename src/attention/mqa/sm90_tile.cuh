// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cutlass/arch/barrier.h>
#include <cutlass/fast_math.h>

#include <cstddef>
#include <cstdint>

#include "attention/mqa/sm90.h"

/// What the warp groups of the top-k MQA kernel share: sizes, shared memory, the description of a tile.
namespace headrace::attention::mqa::sm90 {

using Barrier = cutlass::arch::ClusterBarrier;

inline constexpr int kWarp = 32;
inline constexpr int kWarpGroup = 128;
inline constexpr int kConsumers = 2;
inline constexpr int kThreads = kWarpGroup * (kConsumers + 1);
inline constexpr int kRows = static_cast<int>(kTileRows);
inline constexpr int kKeys = static_cast<int>(kKeyBlock);
inline constexpr int kRank = 512;
inline constexpr int kRope = 64;
inline constexpr int kHalf = kRank / kConsumers;  // output columns of a consumer
static_assert(kRows == 64 && kKeys == 64, "what a product of a warp group takes");

/// 64 columns of 64 rows, a row of 128 bytes, whose eight 16-byte chunks are permuted by the row: the layout that the
/// products call swizzled by 128 bytes.
inline constexpr int kColumns = 64;
inline constexpr int kColumnBlockBytes = kRows * kColumns * 2;
inline constexpr int kRowBytes = kColumns * 2;
inline constexpr int kChunkBytes = 16;
inline constexpr int kChunks = kRowBytes / kChunkBytes;
inline constexpr int kLatentBlocks = kRank / kColumns;
inline constexpr int kHalfBlocks = kHalf / kColumns;

/// What a tile is, worked out by the producer.
struct TileWork {
  std::int64_t first_row;  // in queries and heads: of row 0 among the query's rows
  std::int32_t index;      // of the lists; -1: the queue is empty
  std::int32_t first_head;
  std::int32_t rows;  // of kRows
  std::int32_t token;
  std::int32_t request;
  std::int32_t blocks;
};

template <int kQk>
struct SharedStorage {
  static constexpr int kColumnBlocks = kQk / kColumns;
  alignas(1024) std::byte q[kColumnBlocks][kColumnBlockBytes];
  alignas(1024) std::byte k[2][kColumnBlocks][kColumnBlockBytes];
  alignas(1024) std::byte weights[kColumnBlockBytes];
  float highest[kRows];             // of the raw scores, as of the weights
  float sum[2][kConsumers][kRows];  // at a tile's end; tiles take turns
  std::uint64_t full_q;
  std::uint64_t empty_q;
  std::uint64_t full_k[2][kConsumers];  // a buffer's columns of the left half; all others
  std::uint64_t empty_k[2][kConsumers];
  std::uint64_t full_work[2];
  std::uint64_t empty_work[2];
  TileWork work[2];
};

struct Params {
  const std::byte* query;
  const __nv_bfloat16* query_rope;
  std::int64_t query_rope_stride;
  std::int64_t query_rope_head_stride;
  KeyRows keys;
  cutlass::FastDivmod divide_by_page;
  const UnionTile* tiles;
  const std::int32_t* list;
  const std::uint64_t* masks;
  std::int64_t capacity;
  __nv_bfloat16* attended;
  float* lse;
  std::int64_t lse_row_stride;
  const float* sink;
  std::int32_t* counter;
  std::int32_t num_tiles;
  std::int32_t tokens;
  std::int32_t requests;
  std::int32_t parts;  // tiles of heads that a query takes
  std::int32_t heads;
  std::int32_t group;
  float scale_log2;
  bool rows_are_tokens;
};

/// An index that alternates and the phase of its barriers.
struct Turn {
  std::uint32_t index = 0;
  std::uint32_t phase = 0;
  __device__ void advance() {
    index ^= 1U;
    phase ^= index == 0 ? 1U : 0U;
  }
};

}  // namespace headrace::attention::mqa::sm90
