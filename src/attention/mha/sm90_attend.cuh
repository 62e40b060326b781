// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "attention/mha/sm90_tile.cuh"
#include "attention/quad.cuh"

/// What the consumers of the flash attention kernel do: scores, softmax, output.
namespace headrace::attention::mha::sm90 {

/// Where running maxima start: finite, so that a row without keys stays free of NaN.
inline constexpr float kLowest = -1e30F;
inline constexpr float kLog2e = 1.44269504088896340736F;

/// The barriers by which the two consumers take turns; 0 and 1 are the turns, 2 joins both.
enum NamedBarrierId : std::uint32_t { kTurn = 0, kJoin = 2 };

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
__device__ inline RowEnd finish_row(float highest2, float sum, float earlier_lse, float sink) {
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
      const auto visit = [&](auto hides) __attribute__((always_inline)) {
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
        if (decltype(hides)::value) {
          hide(tile);
        }
        soften();
        cute::warpgroup_wait<0>();
        cute::warpgroup_fence_operand(out);
        release(smem.empty_v[v_stage.index]);
        v_stage.advance();
        keep_weights();
      };
      --tile;
      if constexpr (C::kTwoLoops) {
        for (; tile >= max(first_limited, 0); --tile) {
          visit(std::true_type{});
        }
      }
      for (; tile >= 0; --tile) {
        visit(std::bool_constant<!C::kTwoLoops>{});
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

}  // namespace headrace::attention::mha::sm90
