// SPDX-License-Identifier: Apache-2.0
//
// Flash attention for sm_90a: attention of tiles of 128 query rows of one head to the keys of one request.
//
// A block of 384 threads, one a multiprocessor, takes tiles from a queue until none is left:
//   warp group 0      one thread feeds the copy engine: query tiles, K and V tiles, the descriptions of query tiles
//   warp groups 1, 2  64 query rows each: S = Q K^T (A and B from shared memory), softmax, O += P V (P from registers)
// A warp group keeps the product of one key tile in flight while it works on the softmax of the tile before, and the
// two warp groups take turns at the tensor cores, so that one group's softmax runs beside the other's products.
// Keys are visited from the diagonal down. The order of key tiles depends on positions alone.
//
// widths qk/v   key tile   stages   shared memory: Q       K          V          accumulator registers (O + S + P)
//   256/256        80         2               64 KiB    2 x 40     2 x 40 KiB     128 + 40 + 20
//   192/128       128         2               48 KiB    2 x 48     2 x 32 KiB      64 + 64 + 32
//   128/128       128         2               32 KiB    2 x 32     2 x 32 KiB      64 + 64 + 32
//
// K is given in column blocks of 64, each from its own tensor: K_nope from the up-projection and the rope key, which
// all heads share, from where it lies. Nothing is concatenated.
//
// Floor: rows * keys / 2 * 2 (qk + v) FLOPs a head at the card's matrix rate; K and V of a head are read from device
// memory once where they fit the L2 cache, for which heads are taken in groups.
//
// Keys past a request's end may belong to another request and hold anything: their scores are replaced, not added to,
// and their V rows are zeroed in shared memory, for 0 * NaN is NaN.

// The key tile of 80 columns needs products that CuTe leaves out by default.
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED
#include <cuda.h>
#include <cuda_runtime.h>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/bfloat16.h>

#include <algorithm>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cute/tensor.hpp>
#include <string>

#include "attention/mha/sm90.h"
#include "attention/quad.cuh"
#include "device/cuda/check.cuh"
#include "device/cuda/launch.cuh"
#include "headrace/error.h"

namespace headrace::attention::mha::sm90 {
namespace {

using device::cuda::check;

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

constexpr int kWarpGroup = 128;
constexpr int kConsumers = 2;
constexpr int kThreads = kWarpGroup * (1 + kConsumers);
constexpr int kRowsOfGroup = 64;
constexpr int kColumnBlock = 64;  // of 128 bytes: what the copy engine's 128-byte swizzle works on
static_assert(kRowsOfGroup * kConsumers == kQueryTile);

/// Registers of a thread. All that the block has from its launch (168 a thread) go round, and no more: a warp group
/// that asks for more than the others give back waits for ever.
constexpr int kProducerRegisters = 24;
constexpr int kConsumerRegisters = 240;
static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= (1 + kConsumers) * 168);

/// Where running maxima start: finite, so that a row without keys stays free of NaN.
constexpr float kLowest = -1e30F;
constexpr float kLog2e = 1.44269504088896340736F;

/// The barriers by which the two consumers take turns; 0 and 1 are the turns, 2 joins both.
enum NamedBarrierId : std::uint32_t { kTurn = 0, kJoin = 2 };

template <int kQk_, int kV_, int kKeys_, bool kMasked_>
struct Config {
  static constexpr int kQk = kQk_;
  static constexpr int kV = kV_;
  static constexpr int kKeys = kKeys_;
  static constexpr int kStages = 2;
  static constexpr bool kMasked = kMasked_;

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
  std::int32_t num_tiles;
  std::int32_t total;  // num_tiles * heads
  std::int32_t heads;
  std::int32_t head_group;  // heads that are worked on together
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

/// Tile number `index` of the queue: group after group of heads; in a group tile after tile, all its heads in turn.
template <class C>
__device__ TileWork describe(const Params& p, std::int32_t index) {
  TileWork work{};
  if (index >= p.total) {
    work.head = -1;
    return work;
  }
  const std::int32_t group = index / (p.num_tiles * p.head_group);
  const std::int32_t first_head = group * p.head_group;
  const std::int32_t heads = min(p.head_group, p.heads - first_head);
  const std::int32_t rest = index - p.num_tiles * first_head;
  const QueryTile tile = p.tiles[rest / heads];
  work.head = first_head + rest % heads;

  const RequestSpan span = p.spans[tile.request];
  const std::int32_t begin_token = p.query_start[tile.request];
  const std::int32_t query_len = p.query_start[tile.request + 1] - begin_token;
  const std::int32_t seq_len = p.seq_len[tile.request];
  const std::int32_t context = seq_len - query_len;
  const std::int32_t row = tile.tile * static_cast<std::int32_t>(kQueryTile);
  const std::int32_t position = max(span.rows_begin, context) + span.first_row + row;
  const std::int32_t rows = min(span.row_count - row, min(span.rows_end, seq_len) - position);
  work.rows = max(0, min(static_cast<std::int32_t>(kQueryTile), rows));
  work.token = begin_token + position - context;
  work.slice_row = span.first_slice_row + row;
  work.first_key = span.first_key;
  work.keys = max(0, min(span.keys_end, seq_len) - span.keys_begin);
  work.diagonal = position - span.keys_begin + 1;
  const std::int32_t visible = p.causal ? min(work.keys, max(0, work.diagonal + work.rows - 1)) : work.keys;
  work.key_tiles = work.rows > 0 ? (visible + C::kKeys - 1) / C::kKeys : 0;
  return work;
}

template <class C>
__device__ void produce(const Params& p, SharedStorage<C>& smem) {
  Ring<C::kStages> k_stage;
  Ring<C::kStages> v_stage;
  Ring<2> slot;
  std::uint32_t q_phase = 0;
  const auto load = [](const CUtensorMap& map, std::uint64_t& barrier, bf16* to, int column, int head, int row) {
    cute::SM90_TMA_LOAD_3D::copy(&map, &barrier, static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL), to,
                                 column, head, row);
  };

  TileWork work = describe<C>(p, static_cast<std::int32_t>(blockIdx.x));
  while (true) {
    Barrier::wait(&smem.empty_work[slot.index], slot.phase ^ 1U);
    smem.work[slot.index] = work;
    Barrier::arrive(&smem.full_work[slot.index]);
    slot.advance();
    if (work.head < 0) {
      return;
    }
    // Its answer is needed at the end of this tile only.
    const std::int32_t next = static_cast<std::int32_t>(gridDim.x) + atomicAdd(p.counter, 1);
    const auto load_q = [&](int group) {
      Barrier::wait(&smem.empty_q[group], q_phase ^ 1U);
      std::uint64_t& full = smem.full_q[group];
      TransactionBarrier::arrive_and_expect_tx(&full, C::kQueryBytes / kConsumers);
      for (int block = 0; block < C::kQk / kColumnBlock; ++block) {
        load(p.query, full, smem.q[group] + block * kColumnBlock * kRowsOfGroup, block * kColumnBlock, work.head,
             work.token + group * kRowsOfGroup);
      }
    };
    const auto load_k = [&](int tile) {
      Barrier::wait(&smem.empty_k[k_stage.index], k_stage.phase ^ 1U);
      std::uint64_t& full = smem.full_k[k_stage.index];
      TransactionBarrier::arrive_and_expect_tx(&full, C::kKeyBytes);
      const int row = static_cast<int>(work.first_key) + tile * C::kKeys;
      for (int block = 0; block < C::kQk / kColumnBlock; ++block) {
        bf16* to = smem.k[k_stage.index] + block * kColumnBlock * C::kKeys;
        if (block < p.nope_blocks) {
          load(p.key_nope, full, to, block * kColumnBlock, work.head, row);
        } else {
          load(p.key_rope, full, to, (block - p.nope_blocks) * kColumnBlock, 0, row);
        }
      }
      k_stage.advance();
    };
    const auto load_v = [&](int tile) {
      Barrier::wait(&smem.empty_v[v_stage.index], v_stage.phase ^ 1U);
      std::uint64_t& full = smem.full_v[v_stage.index];
      TransactionBarrier::arrive_and_expect_tx(&full, C::kValueBytes);
      const int row = static_cast<int>(work.first_key) + tile * C::kKeys;
      for (int block = 0; block < C::kV / kColumnBlock; ++block) {
        load(p.value, full, smem.v[v_stage.index] + block * kColumnBlock * C::kKeys, block * kColumnBlock, work.head,
             row);
      }
      v_stage.advance();
    };
    if (work.key_tiles > 0) {
      // One group may begin while the other is at its last tile.
      load_q(0);
      load_k(work.key_tiles - 1);
      load_q(1);
      q_phase ^= 1U;
    }
    const TileWork following = describe<C>(p, next);
    for (int tile = work.key_tiles - 1; tile >= 0; --tile) {
      if (tile > 0) {
        load_k(tile - 1);
      }
      load_v(tile);
    }
    work = following;
  }
}

/// Zeroes the V rows of keys that the request does not have; all consumers take part.
template <class C>
__device__ void zero_values(bf16* tile, int first, int thread) {
  constexpr int kChunks = kColumnBlock * 2 / 16;  // of 16 bytes in a row of a column block
  const int rows = C::kKeys - first;
  for (int i = thread; i < rows * kChunks * (C::kV / kColumnBlock); i += kConsumers * kWarpGroup) {
    const int block = i / (rows * kChunks);
    const int rest = i % (rows * kChunks);
    bf16* row = tile + (block * C::kKeys + first + rest / kChunks) * kColumnBlock;
    reinterpret_cast<uint4*>(row)[rest % kChunks] = uint4{0, 0, 0, 0};
  }
  cutlass::arch::fence_view_async_shared();
  cutlass::arch::NamedBarrier::sync(kConsumers * kWarpGroup, kJoin);
}

/// The mask of a thread's two rows (8 apart) in one key tile: bit 2 j + c is column 8 j + 2 (lane % 4) + c.
struct MaskWords {
  std::uint32_t word[2];

  __device__ void load(const Params& p, std::int64_t row, int tile, int lane) {
    const std::uint32_t* from = p.mask + (tile * p.mask_rows + row) * kMaskWords + (lane & 3);
    word[0] = __ldg(from);
    word[1] = __ldg(from + 8 * kMaskWords);
  }
  __device__ bool selected(int r, int j, int c) const { return (word[r] & 1U << (2 * j + c)) != 0; }
};

/// How a row's accumulated values become its result.
struct RowEnd {
  float lse;            // natural, of this pass and earlier ones, without the sink
  float share;          // what this pass's accumulated values are multiplied with
  float earlier_share;  // what the earlier passes' result is multiplied with
};

/// @param highest2  the row's greatest score, in powers of two
/// @param sum       of the weights relative to it; 0 for a row that attends to nothing
__device__ RowEnd finish_row(float highest2, float sum, float earlier_lse, float sink) {
  const float own = sum == 0.0F ? -INFINITY : highest2 / kLog2e + logf(sum);  // a NaN stays one
  const float high = fmaxf(own, earlier_lse);
  if (high == -INFINITY && !isnan(own)) {
    return {-INFINITY, 0.0F, 0.0F};
  }
  const float own_weight = expf(own - high);
  const float earlier_weight = expf(earlier_lse - high);
  const float lse = high + logf(own_weight + earlier_weight);
  const float total = (own_weight + earlier_weight) * (1.0F + expf(sink - lse));
  return {lse, sum == 0.0F ? 0.0F : own_weight / (sum * total), earlier_weight / total};
}

template <class C>
__device__ void consume(const Params& p, SharedStorage<C>& smem, int group) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpGroup;
  const int lane = thread % 32;
  // Of the thread's accumulators, element c + 2 r + 4 j is column 8 j + 2 (lane % 4) + c of row `row` + 8 r.
  const int row = thread / 32 * 16 + lane / 4;

  typename C::MmaQk mma_qk;
  typename C::MmaPv mma_pv;
  const auto thread_qk = mma_qk.get_thread_slice(thread);
  const auto thread_pv = mma_pv.get_thread_slice(thread);
  const auto q = cute::make_tensor(cute::make_smem_ptr(smem.q[group]), typename C::TileQ{});
  const auto k = cute::make_tensor(cute::make_smem_ptr(smem.k[0]), typename C::TileK{});
  const auto v = cute::make_tensor(cute::make_smem_ptr(smem.v[0]), typename C::TileV{});
  const auto frag_q = thread_qk.make_fragment_A(thread_qk.partition_A(q));
  const auto frag_k = thread_qk.make_fragment_B(thread_qk.partition_B(k));
  const auto frag_v = thread_pv.make_fragment_B(thread_pv.partition_B(v));
  auto scores = cute::partition_fragment_C(mma_qk, Shape<_64, Int<C::kKeys>>{});
  auto out = cute::partition_fragment_C(mma_pv, Shape<_64, Int<C::kV>>{});
  auto weights = cute::make_tensor<bf16>(Layout<Shape<Shape<_2, _2, _2>, _1, Int<C::kKeys / 16>>>{});
  auto weight_pairs = cute::recast<std::uint32_t>(weights);
  constexpr int kColumns = C::kKeys / 8;

  const auto start_qk = [&](int stage) {
    cute::warpgroup_fence_operand(scores);
    cute::warpgroup_arrive();
    mma_qk.accumulate_ = cute::GMMA::ScaleOut::Zero;
#pragma unroll
    for (int i = 0; i < cute::size<2>(frag_q); ++i) {
      cute::gemm(mma_qk, frag_q(cute::_, cute::_, i), frag_k(cute::_, cute::_, i, stage), scores);
      mma_qk.accumulate_ = cute::GMMA::ScaleOut::One;
    }
    cute::warpgroup_commit_batch();
  };
  const auto start_pv = [&](int stage) {
    cute::warpgroup_fence_operand(out);
    cute::warpgroup_fence_operand(weights);
    cute::warpgroup_arrive();
    mma_pv.accumulate_ = cute::GMMA::ScaleOut::One;
#pragma unroll
    for (int i = 0; i < cute::size<2>(weights); ++i) {
      cute::gemm(mma_pv, weights(cute::_, cute::_, i), frag_v(cute::_, cute::_, i, stage), out);
    }
    cute::warpgroup_commit_batch();
  };
  const auto release = [&](std::uint64_t& barrier) {
    if (lane == 0) {
      Barrier::arrive(&barrier);
    }
  };

  Ring<C::kStages> k_stage;
  Ring<C::kStages> v_stage;
  Ring<2> slot;
  std::uint32_t q_phase = 0;
  if (group == 1) {
    cutlass::arch::NamedBarrier::arrive(kConsumers * kWarpGroup, kTurn + 0);
  }

  while (true) {
    Barrier::wait(&smem.full_work[slot.index], slot.phase);
    const TileWork& work = smem.work[slot.index];  // read where it is needed: registers are scarce
    if (work.head < 0) {
      return;
    }

    float highest[2] = {kLowest, kLowest};  // of the raw scores
    float sum[2] = {0.0F, 0.0F};            // this thread's columns only, until the end
    float factor[2];                        // of what has been accumulated, not yet applied
    MaskWords mask;
    // Key tiles from here on have keys that some row of the group must not see.
    const int first_limited = (p.causal ? min(work.keys, work.diagonal + group * kRowsOfGroup) : work.keys) / C::kKeys;

    const auto hide = [&](int tile) {
      if constexpr (C::kMasked) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (!mask.selected(i / 2, j, i % 2)) {
              scores(4 * j + i) = -INFINITY;
            }
          }
        }
        if (tile > 0) {
          mask.load(p, work.slice_row + group * kRowsOfGroup + row, tile - 1, lane);
        }
      } else if (tile >= first_limited) {
        const int first = tile * C::kKeys + 2 * (lane & 3);
        int limit[2];  // keys of the pass that each row may see
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int seen = work.diagonal + group * kRowsOfGroup + row + 8 * r;
          limit[r] = p.causal ? min(work.keys, seen) : work.keys;
        }
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (first + 8 * j + i % 2 >= limit[i / 2]) {
              scores(4 * j + i) = -INFINITY;
            }
          }
        }
      }
    };
    // Turns scores into weights, and finds what the output so far is to be multiplied with.
    const auto soften = [&] {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float high = highest[r];
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          high = fmaxf(high, fmaxf(scores(4 * j + 2 * r), scores(4 * j + 2 * r + 1)));
        }
        high = next_maximum(highest[r], quad_max(high), p.scale_log2);
        factor[r] = power_of_two((highest[r] - high) * p.scale_log2);
        highest[r] = high;
        const float offset = high * p.scale_log2;
        float total = sum[r] * factor[r];
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            float& x = scores(4 * j + 2 * r + c);
            x = power_of_two(x * p.scale_log2 - offset);
            total += x;
          }
        }
        sum[r] = total;
      }
    };
    const auto rescale = [&] {
      if (maxima_stand(factor)) {
        return;
      }
#pragma unroll
      for (int i = 0; i < cute::size(out); ++i) {
        out(i) *= factor[i / 2 % 2];
      }
    };
    const auto keep_weights = [&] {
#pragma unroll
      for (int i = 0; i < 2 * kColumns; ++i) {
        weight_pairs(i) = pack(scores(2 * i), scores(2 * i + 1));
      }
    };

    // The next tile's queries may come while the last keys of this one are still worked on.
    const auto finish_qk = [&](int tile) {
      release(smem.empty_k[k_stage.index]);
      k_stage.advance();
      if (tile == 0) {
        release(smem.empty_q[group]);
      }
    };

    cute::clear(out);
    if (work.key_tiles > 0) {
      int tile = work.key_tiles - 1;
      if constexpr (C::kMasked) {
        mask.load(p, work.slice_row + group * kRowsOfGroup + row, tile, lane);
      }
      Barrier::wait(&smem.full_q[group], q_phase);
      q_phase ^= 1U;
      Barrier::wait(&smem.full_k[k_stage.index], k_stage.phase);
      start_qk(k_stage.index);
      cute::warpgroup_wait<0>();
      cute::warpgroup_fence_operand(scores);
      finish_qk(tile);
      hide(tile);
      soften();
      keep_weights();
      if (work.keys < work.key_tiles * C::kKeys) {
        Barrier::wait(&smem.full_v[v_stage.index], v_stage.phase);
        zero_values<C>(smem.v[v_stage.index], work.keys - tile * C::kKeys, group * kWarpGroup + thread);
      }
      for (--tile; tile >= 0; --tile) {
        Barrier::wait(&smem.full_k[k_stage.index], k_stage.phase);
        cutlass::arch::NamedBarrier::sync(kConsumers * kWarpGroup, kTurn + group);
        start_qk(k_stage.index);
        rescale();
        Barrier::wait(&smem.full_v[v_stage.index], v_stage.phase);
        start_pv(v_stage.index);
        cutlass::arch::NamedBarrier::arrive(kConsumers * kWarpGroup, kTurn + 1 - group);
        cute::warpgroup_wait<1>();
        cute::warpgroup_fence_operand(scores);
        finish_qk(tile);
        hide(tile);
        soften();
        cute::warpgroup_wait<0>();
        cute::warpgroup_fence_operand(out);
        release(smem.empty_v[v_stage.index]);
        v_stage.advance();
        keep_weights();
      }
      rescale();
      Barrier::wait(&smem.full_v[v_stage.index], v_stage.phase);
      start_pv(v_stage.index);
      cute::warpgroup_wait<0>();
      cute::warpgroup_fence_operand(out);
      release(smem.empty_v[v_stage.index]);
      v_stage.advance();
    }

    const float sink = p.sink == nullptr ? -INFINITY : p.sink[work.head];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int local = group * kRowsOfGroup + row + 8 * r;
      const std::int64_t slice_row = work.slice_row + local;
      const std::int64_t out_row = p.to_slice ? slice_row : work.token + local;
      const std::int64_t earlier_row = slice_row * p.heads + work.head;
      const bool store = local < work.rows;
      const RowEnd end = finish_row(highest[r] * p.scale_log2, quad_sum(sum[r]),
                                    store && p.earlier != nullptr ? p.earlier_lse[earlier_row] : -INFINITY, sink);
      if (store && p.lse != nullptr && (lane & 3) == 0) {
        p.lse[out_row * p.lse_row_stride + work.head] = end.lse;
      }
      if (p.earlier != nullptr) {
        const float* from = p.earlier + earlier_row * C::kV + 2 * (lane & 3);
#pragma unroll
        for (int j = 0; j < C::kV / 8; ++j) {
          const float2 pair = store ? *reinterpret_cast<const float2*>(from + 8 * j) : float2{0.0F, 0.0F};
          out(4 * j + 2 * r) = out(4 * j + 2 * r) * end.share + pair.x * end.earlier_share;
          out(4 * j + 2 * r + 1) = out(4 * j + 2 * r + 1) * end.share + pair.y * end.earlier_share;
        }
      } else {
#pragma unroll
        for (int j = 0; j < C::kV / 8; ++j) {
          out(4 * j + 2 * r) *= end.share;
          out(4 * j + 2 * r + 1) *= end.share;
        }
      }
      const std::int64_t at = out_row * p.out_row_stride + work.head * p.out_head_stride;
      if (p.out_float32) {
        float* to = static_cast<float*>(p.out) + at + 2 * (lane & 3);
#pragma unroll
        for (int j = 0; j < C::kV / 8; ++j) {
          if (store) {
            *reinterpret_cast<float2*>(to + 8 * j) = float2{out(4 * j + 2 * r), out(4 * j + 2 * r + 1)};
          }
        }
      } else {
        bf16* to = static_cast<bf16*>(p.out) + at + 8 * (lane & 3);
#pragma unroll
        for (int j = 0; j < C::kV / 8; j += 4) {
          std::uint32_t pairs[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            pairs[i] = pack(out(4 * (j + i) + 2 * r), out(4 * (j + i) + 2 * r + 1));
          }
          transpose_quad(pairs, lane);
          if (store) {
            *reinterpret_cast<uint4*>(to + 8 * j) = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
          }
        }
      }
    }
    release(smem.empty_work[slot.index]);
    slot.advance();
  }
}

template <class C>
__global__ void __launch_bounds__(kThreads, 1) mha_kernel(const __grid_constant__ Params p) {
  auto& smem = *device::cuda::dynamic_shared<SharedStorage<C>>();
  const int group = static_cast<int>(threadIdx.x) / kWarpGroup;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kConsumers; ++i) {
      Barrier::init(&smem.full_q[i], 1);
      Barrier::init(&smem.empty_q[i], 4);
    }
    for (int i = 0; i < C::kStages; ++i) {
      Barrier::init(&smem.full_k[i], 1);
      Barrier::init(&smem.full_v[i], 1);
      Barrier::init(&smem.empty_k[i], kConsumers * 4);
      Barrier::init(&smem.empty_v[i], kConsumers * 4);
    }
    for (int i = 0; i < 2; ++i) {
      Barrier::init(&smem.full_work[i], 1);
      Barrier::init(&smem.empty_work[i], kConsumers * 4);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  if (group == 0) {
    cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
    if (threadIdx.x == 0) {
      produce<C>(p, smem);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
    consume<C>(p, smem, group - 1);
  }
}

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, found at run time: the library links no driver.
Encode encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    throw Error("cuda", "a driver with cuTensorMapEncodeTiled", "none");
  }
  return reinterpret_cast<Encode>(function);
}

/// Boxes of 64 columns of one head and `box_rows` rows, swizzled by 128 bytes.
CUtensorMap tensor_map(const char* name, const HeadMatrix& m, std::int64_t columns, std::int64_t heads,
                       std::int64_t box_rows) {
  constexpr std::int64_t kAlign = 16;
  const bool shared = m.head_stride == 0;
  if (reinterpret_cast<std::uintptr_t>(m.data) % kAlign != 0 || m.row_stride * 2 % kAlign != 0 ||
      m.head_stride * 2 % kAlign != 0) {
    throw Error(name, "an address and strides divisible by 16 bytes", "others");
  }
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(shared ? 1 : heads),
                               static_cast<cuuint64_t>(m.rows)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>((shared ? m.row_stride : m.head_stride) * 2),
                                 static_cast<cuuint64_t>(m.row_stride * 2)};
  const cuuint32_t box[3] = {kColumnBlock, 1, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[3] = {1, 1, 1};
  CUtensorMap map;
  static const Encode encode = encoder();
  const CUresult status = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(m.data), sizes, strides,
                                 box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error(name, "a tensor the copy engine can read", "driver error " + std::to_string(static_cast<int>(status)));
  }
  return map;
}

/// Heads whose keys and values share the L2 cache: with more, every query tile would read them from device memory.
std::int32_t head_group(const Pass& pass) {
  constexpr std::int64_t kCacheBytes = std::int64_t{32} << 20;
  const std::int64_t head_bytes = pass.value.rows * (pass.geometry.qk_head_dim() + pass.geometry.v_head_dim) * 2;
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(kCacheBytes / std::max<std::int64_t>(head_bytes, 1), 1, pass.geometry.num_heads));
}

/// Lets a block of the kernel have the shared memory it needs, which also loads its code.
template <class C>
void load_kernel() {
  static_assert(sizeof(SharedStorage<C>) <= 232448, "more shared memory than a block of sm_90 has");
  device::cuda::allow_shared_memory(mha_kernel<C>, sizeof(SharedStorage<C>));
}

/// Calls `use` with the configuration for a geometry.
template <class Use>
void with_kernel(const Geometry& g, bool masked, const Use& use) {
  if (g.qk_head_dim() == 256) {
    masked ? use(Config<256, 256, 80, true>{}) : use(Config<256, 256, 80, false>{});
  } else if (g.qk_head_dim() == 192) {
    masked ? use(Config<192, 128, 128, true>{}) : use(Config<192, 128, 128, false>{});
  } else {
    masked ? use(Config<128, 128, 128, true>{}) : use(Config<128, 128, 128, false>{});
  }
}

template <class C>
void launch_kernel(const Pass& pass, int multiprocessors, Stream stream) {
  const Geometry& g = pass.geometry;
  Params p{};
  p.query = tensor_map("q", pass.query, g.qk_head_dim(), g.num_heads, kRowsOfGroup);
  p.key_nope = tensor_map("key_nope", pass.key_nope, g.qk_nope_head_dim, g.num_heads, C::kKeys);
  p.key_rope =
      g.qk_rope_head_dim > 0 ? tensor_map("key_rope", pass.key_rope, g.qk_rope_head_dim, 1, C::kKeys) : p.key_nope;
  p.value = tensor_map("value", pass.value, g.v_head_dim, g.num_heads, C::kKeys);
  p.query_start = pass.query_start;
  p.seq_len = pass.seq_len;
  p.spans = pass.spans;
  p.tiles = pass.tiles;
  p.counter = pass.counter;
  p.mask = pass.mask;
  p.mask_rows = pass.mask_rows;
  p.earlier = pass.earlier;
  p.earlier_lse = pass.earlier_lse;
  p.to_slice = pass.to_slice;
  p.out = pass.out;
  p.out_row_stride = pass.out_row_stride;
  p.out_head_stride = pass.out_head_stride;
  p.lse = pass.lse;
  p.lse_row_stride = pass.lse_row_stride;
  p.sink = pass.sink;
  p.num_tiles = static_cast<std::int32_t>(pass.num_tiles);
  p.heads = static_cast<std::int32_t>(g.num_heads);
  p.total = p.num_tiles * p.heads;
  p.head_group = head_group(pass);
  p.nope_blocks = static_cast<std::int32_t>(g.qk_nope_head_dim / kColumnBlock);
  p.scale_log2 = pass.scale * kLog2e;
  p.causal = pass.causal;
  p.out_float32 = pass.out_float32;
  load_kernel<C>();
  check(cudaMemsetAsync(pass.counter, 0, sizeof(std::int32_t), device::cuda::native(stream)), "cudaMemsetAsync");
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(multiprocessors, p.total));
  device::cuda::launch("flash attention", mha_kernel<C>, blocks, kThreads, sizeof(SharedStorage<C>), stream, p);
}

}  // namespace

void load(const Geometry& geometry) {
  for (const bool masked : {false, true}) {
    with_kernel(geometry, masked, [](auto config) { load_kernel<decltype(config)>(); });
  }
}

void launch(const Pass& pass, int multiprocessors, Stream stream) {
  for (const std::string& reason : unmet_requirements(pass.geometry)) {
    throw Error("geometry", "one that the flash attention kernel serves", reason);
  }
  constexpr std::int64_t kAlign = 8;
  if (pass.out_row_stride % kAlign != 0 || pass.out_head_stride % kAlign != 0 ||
      reinterpret_cast<std::uintptr_t>(pass.out) % 16 != 0) {
    throw Error("out", "an address divisible by 16 bytes and strides by 8 elements", "others");
  }
  if (pass.num_tiles == 0) {
    return;
  }
  with_kernel(pass.geometry, pass.mask != nullptr,
              [&](auto config) { launch_kernel<decltype(config)>(pass, multiprocessors, stream); });
}

}  // namespace headrace::attention::mha::sm90
