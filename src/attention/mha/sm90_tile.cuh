// SPDX-License-Identifier: Apache-2.0
#pragma once

// The key tile of 80 columns needs products that CuTe leaves out by default.
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED
#include <cuda.h>
#include <cuda_runtime.h>
#include <cutlass/arch/barrier.h>
#include <cutlass/bfloat16.h>

#include <cstdint>
#include <cute/atom/mma_atom.hpp>
#include <cute/tensor.hpp>

#include "attention/mha/sm90.h"

/// What the warp groups of the flash attention kernel share: tile shapes, shared memory, the description of a tile.
namespace headrace::attention::mha::sm90 {

using cute::_1;
using cute::_2;
using cute::_64;
using cute::Int;
using cute::Layout;
using cute::Shape;
using cute::Step;
using bf16 = cutlass::bfloat16_t;
using Barrier = cutlass::arch::ClusterBarrier;
using TransactionBarrier = cutlass::arch::ClusterTransactionBarrier;

inline constexpr int kWarpGroup = 128;
inline constexpr int kConsumers = 2;
inline constexpr int kThreads = kWarpGroup * (1 + kConsumers);
inline constexpr int kRowsOfGroup = 64;
inline constexpr int kColumnBlock = 64;  // of 128 bytes: what the copy engine's 128-byte swizzle works on
static_assert(kRowsOfGroup * kConsumers == kQueryTile);

template <int kQk_, int kV_, int kKeys_, bool kMasked_>
struct Config {
  static constexpr int kQk = kQk_;
  static constexpr int kV = kV_;
  static constexpr int kKeys = kKeys_;
  static constexpr int kStages = 2;
  static constexpr bool kMasked = kMasked_;
  /// Key tiles of which nothing is hidden have a loop of their own, in which nothing branches between a product and its
  /// softmax. With an output of 256 columns a second loop costs more registers than it gives.
  static constexpr bool kTwoLoops = !kMasked && kV_ <= 128;

  using TileQ = decltype(cute::tile_to_shape(cute::GMMA::Layout_K_SW128_Atom<bf16>{}, Shape<_64, Int<kQk>>{}));
  using TileK = decltype(cute::tile_to_shape(cute::GMMA::Layout_K_SW128_Atom<bf16>{},
                                             Shape<Int<kKeys>, Int<kQk>, Int<kStages>>{}));
  /// V as the second product reads it: [v, keys], with the keys of a column block next to each other.
  using TileV = decltype(cute::tile_to_shape(cute::GMMA::Layout_MN_SW128_Atom<bf16>{},
                                             Shape<Int<kV>, Int<kKeys>, Int<kStages>>{}, Step<_2, _1, cute::_3>{}));
  using MmaQk =
      decltype(cute::make_tiled_mma(cute::GMMA::ss_op_selector<bf16, bf16, float, Shape<_64, Int<kKeys>, Int<kQk>>>()));
  using MmaPv =
      decltype(cute::make_tiled_mma(cute::GMMA::rs_op_selector<bf16, bf16, float, Shape<_64, Int<kV>, Int<kKeys>>,
                                                               cute::GMMA::Major::K, cute::GMMA::Major::MN>()));

  static_assert(kQk % kColumnBlock == 0 && kV % kColumnBlock == 0 && kKeys % 16 == 0);
  static constexpr int kQueryBytes = kConsumers * kRowsOfGroup * kQk * 2;
  static constexpr int kKeyBytes = kKeys * kQk * 2;
  static constexpr int kValueBytes = kKeys * kV * 2;
};

/// What a query tile is, worked out by the producer from the exact lengths.
struct TileWork {
  std::int64_t slice_row;  // of its first row
  std::int32_t token;      // of its first row
  std::int32_t rows;       // 0: nothing to do
  std::int32_t head;       // -1: the queue is empty
  std::int32_t diagonal;   // keys that the first row sees, counted in this pass
  std::int32_t keys;       // of the request in this pass
  std::int32_t key_tiles;
  std::int64_t first_key;
};

template <class C>
struct SharedStorage {
  alignas(1024) bf16 q[kConsumers][kRowsOfGroup * C::kQk];
  alignas(1024) bf16 k[C::kStages][C::kKeys * C::kQk];
  alignas(1024) bf16 v[C::kStages][C::kKeys * C::kV];
  alignas(8) std::uint64_t full_q[kConsumers];
  std::uint64_t empty_q[kConsumers];
  std::uint64_t full_k[C::kStages];
  std::uint64_t empty_k[C::kStages];
  std::uint64_t full_v[C::kStages];
  std::uint64_t empty_v[C::kStages];
  std::uint64_t full_work[2];
  std::uint64_t empty_work[2];
  TileWork work[2];
};

struct Params {
  CUtensorMap query;
  CUtensorMap key_nope;
  CUtensorMap key_rope;
  CUtensorMap value;
  const std::int32_t* query_start;
  const std::int32_t* seq_len;
  const RequestSpan* spans;
  const QueryTile* tiles;
  std::int32_t* counter;
  const std::uint32_t* mask;
  std::int64_t mask_rows;
  const float* earlier;
  const float* earlier_lse;
  void* out;
  std::int64_t out_row_stride;
  std::int64_t out_head_stride;
  float* lse;
  std::int64_t lse_row_stride;
  const float* sink;
  std::int32_t tokens;  // rows of the query, and of the output where that is by token
  std::int32_t num_tiles;
  std::int32_t total;  // num_tiles * heads
  std::int32_t heads;
  std::int32_t head_group;  // heads that are worked on together
  std::int32_t last_group;  // number of the last group, which has all heads that are left
  std::int32_t nope_blocks;
  float scale_log2;
  bool causal;
  bool to_slice;
  bool out_float32;
};

/// Stage and phase of a ring of buffers.
template <int kSize>
struct Ring {
  int index = 0;
  std::uint32_t phase = 0;
  __device__ void advance() {
    if (++index == kSize) {
      index = 0;
      phase ^= 1U;
    }
  }
};

}  // namespace headrace::attention::mha::sm90
