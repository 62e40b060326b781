// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <utility>

#include "attention/mqa/sm90_tile.cuh"
#include "attention/quad.cuh"

/// What the consumers of the top-k MQA kernel do: scores, softmax, output.
namespace headrace::attention::mqa::sm90 {

namespace gmma = cute::SM90::GMMA;
using cutlass::arch::NamedBarrier;

/// Where running maxima start: finite, so that a row without keys stays free of NaN.
inline constexpr float kLowest = -1e30F;
inline constexpr float kLog2e = 1.44269504088896340736F;

/// Barriers of the consumers: one that tells of each one's weights, and two, for tiles in turn, that tell of each one's
/// end of a tile. With one for all tiles, who is at the end of the next tile could arrive twice before the other has
/// waited once.
/// Hardware barriers, because a loop that polls would be control flow between a product's start and its end, in which
/// the compiler lets no register of an accumulator be touched.
inline constexpr std::uint32_t kWeightsOf = 0;
inline constexpr std::uint32_t kEndOf = 2;

/// A description of a matrix in shared memory, swizzled by 128 bytes, for the products.
/// @param base     address of the shared storage, in units of 16 bytes
/// @param offset   bytes from there to the matrix
/// @param leading  bytes from 64 columns to the next 64, where columns are what the product does not sum over
__device__ inline std::uint64_t describe_matrix(std::uint32_t base, int offset, int leading) {
  constexpr std::uint32_t kSwizzle128 = 1U << 30;
  constexpr std::uint32_t kEightRows = 8 * kRowBytes / 16;
  const std::uint32_t low =
      base + static_cast<std::uint32_t>(offset / 16) + (static_cast<std::uint32_t>(leading / 16) << 16);
  return static_cast<std::uint64_t>(kSwizzle128 | kEightRows) << 32 | low;
}

using MmaQk = gmma::MMA_64x64x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K>;
using MmaPvShared = gmma::MMA_64x256x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::MN>;
using MmaPvRegisters = gmma::MMA_64x256x16_F32BF16BF16_RS<gmma::Major::K, gmma::Major::MN>;
inline constexpr int kStep = 16;  // what a product instruction sums over

template <std::size_t... I>
__device__ void multiply_qk(float (&s)[32], std::uint64_t a, std::uint64_t b, bool add, std::index_sequence<I...>) {
  MmaQk::fma(a, b, s[I]..., add ? gmma::ScaleOut::One : gmma::ScaleOut::Zero);
}
template <std::size_t... I>
__device__ void multiply_pv(float (&o)[128], std::uint64_t a, std::uint64_t b, std::index_sequence<I...>) {
  MmaPvShared::fma(a, b, o[I]..., gmma::ScaleOut::One);
}
template <std::size_t... I>
__device__ void multiply_pv(float (&o)[128], const std::uint32_t* a, std::uint64_t b, std::index_sequence<I...>) {
  MmaPvRegisters::fma(a[0], a[1], a[2], a[3], b, o[I]..., gmma::ScaleOut::One);
}

template <class T, std::size_t kSize>
__device__ void fence_operands(T (&registers)[kSize]) {
#pragma unroll
  for (std::size_t i = 0; i < kSize; ++i) {
    cute::warpgroup_fence_operand(registers[i]);
  }
}

/// What the two consumers do; kGroup is 0 for the left half of the columns.
template <int kQk, int kGroup>
class Consumer {
 public:
  __device__ Consumer(const Params& p, SharedStorage<kQk>& smem)
      : p_(p),
        smem_(smem),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        row_(static_cast<int>(threadIdx.x) % kWarpGroup / kWarp * 16 + lane_ / 4),
        base_(cute::cast_smem_ptr_to_uint(&smem) / 16) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Rows past the last query's hold zeros and are not stored: any mask will do.
      query_[r] = p.parts == 1 ? min((row_ + 8 * r) / p.heads, p.group - 1) : 0;
    }
  }

  __device__ void run() {
    Turn slot;
    while (true) {
      Barrier::wait(&smem_.full_work[slot.index], slot.phase);
      work_ = &smem_.work[slot.index];
      if (work_->index < 0) {
        return;
      }
      attend();
      store();
      release(smem_.empty_work[slot.index]);
      slot.advance();
    }
  }

 private:
  using Storage = SharedStorage<kQk>;
  static constexpr int kOther = 1 - kGroup;
  static constexpr int kOffsetQ = offsetof(Storage, q);
  static constexpr int kOffsetK = offsetof(Storage, k);
  static constexpr int kOffsetWeights = offsetof(Storage, weights);
  static constexpr int kBufferBytes = sizeof(Storage::k[0]);

  /// For a warp's thread that has seen all its threads come here.
  __device__ void release(std::uint64_t& barrier) {
    __syncwarp();
    if (lane_ == 0) {
      Barrier::arrive(&barrier);
    }
  }

  /// Waits for what the producer's copies brought, which the products read through another proxy.
  __device__ static void wait_for_copies(std::uint64_t& barrier, std::uint32_t phase) {
    Barrier::wait(&barrier, phase);
    cutlass::arch::fence_view_async_shared();
  }

  /// Two product groups: scores of the own block, from columns of the left half and from all others.
  __device__ void start_qk() {
    start_qk_half<0>();
    start_qk_half<1>();
  }

  template <int kPart>
  __device__ void start_qk_half() {
    if constexpr (kPart == 0) {
      load_masks();
    }
    fence_operands(scores_);
    wait_for_copies(smem_.full_k[kGroup][kPart], k_phase_[kGroup]);
    cute::warpgroup_arrive();
    constexpr int kEnd = kPart == 0 ? kHalfBlocks : kQk / kColumns;
#pragma unroll
    for (int c = kPart * kHalfBlocks; c < kEnd; ++c) {
#pragma unroll
      for (int i = 0; i < kColumns / kStep; ++i) {
        const int offset = c * kColumnBlockBytes + i * kStep * 2;
        multiply_qk(scores_, describe_matrix(base_, kOffsetQ + offset, 16),
                    describe_matrix(base_, kOffsetK + kGroup * kBufferBytes + offset, 16), c + i > 0,
                    std::make_index_sequence<32>());
      }
    }
    cute::warpgroup_commit_batch();
  }

  /// One product group: the half of the output that this group holds. kBuffer has the block's V.
  template <int kBuffer>
  __device__ void start_pv() {
    fence_operands(out_);
    fence_operands(weights_);
    cute::warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < kKeys / kStep; ++i) {
      const std::uint64_t v = describe_matrix(
          base_, kOffsetK + kBuffer * kBufferBytes + kGroup * kHalfBlocks * kColumnBlockBytes + i * kStep * kRowBytes,
          kColumnBlockBytes);
      if constexpr (kBuffer == kGroup) {
        multiply_pv(out_, weights_ + 4 * i, v, std::make_index_sequence<128>());
      } else {
        multiply_pv(out_, describe_matrix(base_, kOffsetWeights + i * kStep * 2, 16), v,
                    std::make_index_sequence<128>());
      }
    }
    cute::warpgroup_commit_batch();
  }

  /// The masks of the thread's two rows in the next own block, shifted so that bit 8 j + c is the column that its score
  /// 4 j + c has.
  __device__ void load_masks() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint64_t mask = __ldg(masks_ + query_[r]);
      mask_[r][0] = static_cast<std::uint32_t>(mask) >> 2 * (lane_ & 3);
      mask_[r][1] = static_cast<std::uint32_t>(mask >> 32) >> 2 * (lane_ & 3);
    }
    masks_ += kConsumers * p_.group;
  }

  /// Turns the scores of the own block into weights, and finds what everything so far is to be multiplied with.
  __device__ void soften() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float high = highest_[r];
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = scores_[4 * j + 2 * r + c];
          x = (mask_[r][j / 4] & 1U << (8 * (j % 4) + c)) != 0 ? x : -INFINITY;
          high = fmaxf(high, x);
        }
      }
      raise(r, next_maximum(highest_[r], quad_max(high), p_.scale_log2));
      const float offset = highest_[r] * p_.scale_log2;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = scores_[4 * j + 2 * r + c];
          x = power_of_two(x * p_.scale_log2 - offset);
          sum_[r] += x;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      weights_[i] = pack(scores_[2 * i], scores_[2 * i + 1]);
    }
  }

  /// A row's maximum becomes `high`.
  __device__ void raise(int r, float high) {
    factor_[r] = power_of_two((highest_[r] - high) * p_.scale_log2);
    highest_[r] = high;
    sum_[r] *= factor_[r];
  }

  /// Hands the weights of the own block to the other group.
  __device__ void publish() {
    // Four 8 x 8 matrices at once: of 16 columns, the upper and the lower rows of the warp's 16. Lane l says where row
    // l % 8 of matrix l / 8 goes.
    const int row = static_cast<int>(threadIdx.x) % kWarpGroup / kWarp * 16 + lane_ % 16;
    const int chunk = lane_ / 16 ^ lane_ % 8;
#pragma unroll
    for (int j = 0; j < kKeys / 8; j += 2) {
      std::byte* to = smem_.weights + row * kRowBytes + (j ^ chunk) * kChunkBytes;
      cute::SM90_U32x4_STSM_N::copy(weights_[2 * j], weights_[2 * j + 1], weights_[2 * j + 2], weights_[2 * j + 3],
                                    *reinterpret_cast<cute::uint128_t*>(to));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if ((lane_ & 3) == 0) {
        smem_.highest[row_ + 8 * r] = highest_[r];
      }
    }
    cutlass::arch::fence_view_async_shared();
    NamedBarrier::arrive(kConsumers * kWarpGroup, kWeightsOf + kGroup);
  }

  /// Waits for the weights of the other group's block, and finds what everything so far is to be multiplied with.
  __device__ void receive() {
    NamedBarrier::sync(kConsumers * kWarpGroup, kWeightsOf + kOther);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      raise(r, smem_.highest[row_ + 8 * r]);
    }
  }

  __device__ void rescale() {
    if (maxima_stand(factor_)) {
      return;
    }
#pragma unroll
    for (int i = 0; i < 128; ++i) {
      out_[i] *= factor_[i / 2 % 2];
    }
  }

  __device__ void finish_buffer(int buffer) {
    release(smem_.empty_k[buffer][kGroup]);
    k_phase_[buffer] ^= 1U;
  }

  /// The other group's block: its V lies in the buffer of that number.
  __device__ void start_other() {
    receive();
    // None of the output is in flight, but perhaps the scores, two product groups. The compiler does not see it, and
    // would wait for those too.
    cute::warpgroup_wait<2>();
    fence_operands(out_);
    rescale();
    wait_for_copies(smem_.full_k[kOther][kGroup], k_phase_[kOther]);
    start_pv<kOther>();
  }

  __device__ void start_own() {
    rescale();
    start_pv<kGroup>();
  }

  __device__ void attend() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      highest_[r] = kLowest;
      sum_[r] = 0.0F;
    }
#pragma unroll
    for (int i = 0; i < 128; ++i) {
      out_[i] = 0.0F;
    }
    if (work_->blocks == 0) {
      return;
    }
    masks_ = reinterpret_cast<const unsigned long long*>(p_.masks) +
             (work_->index * (p_.capacity / kKeys) + kGroup) * p_.group;
    wait_for_copies(smem_.full_q, q_phase_);
    q_phase_ ^= 1U;
    if constexpr (kGroup == 0) {
      attend_even();
    } else {
      attend_odd();
    }
  }

  /// Scores of blocks 0, 2, ...
  __device__ void attend_even() {
    start_qk();
    int block = 0;
    for (; block + 2 < work_->blocks; block += 2) {
      attend_own();
      start_other();
      start_qk_half<0>();
      // The other buffer goes back before more keys are waited for, which may take long.
      cute::warpgroup_wait<1>();
      fence_operands(out_);
      finish_buffer(kOther);
      start_qk_half<1>();
    }
    attend_own();
    release(smem_.empty_q);
    if (block + 1 < work_->blocks) {
      start_other();
      cute::warpgroup_wait<0>();
      fence_operands(out_);
      finish_buffer(kOther);
    }
  }

  /// The rest of an own block whose scores have been started.
  __device__ void attend_own() {
    cute::warpgroup_wait<0>();
    fence_operands(scores_);
    soften();
    publish();
    start_own();
    cute::warpgroup_wait<0>();
    fence_operands(out_);
    finish_buffer(kGroup);
  }

  /// Scores of blocks 1, 3, ...
  __device__ void attend_odd() {
    int block = 0;
    for (; block + 1 < work_->blocks; block += 2) {
      start_qk();
      start_other();
      cute::warpgroup_wait<1>();
      fence_operands(scores_);
      soften();
      cute::warpgroup_wait<0>();
      fence_operands(out_);
      finish_buffer(kOther);
      publish();
      start_own();
      cute::warpgroup_wait<0>();
      fence_operands(out_);
      finish_buffer(kGroup);
    }
    release(smem_.empty_q);
    if (block < work_->blocks) {
      start_other();
      cute::warpgroup_wait<0>();
      fence_operands(out_);
      finish_buffer(kOther);
    }
  }

  __device__ void store() {
    const int turn = parity_;
    float(&sums)[kConsumers][kRows] = smem_.sum[turn];
    parity_ ^= 1;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float own = quad_sum(sum_[r]);
      if ((lane_ & 3) == 0) {
        sums[kGroup][row_ + 8 * r] = own;
      }
    }
    // Also keeps this tile's weights apart from the next one's, whoever makes them.
    const std::uint32_t end_of = kEndOf + kConsumers * static_cast<std::uint32_t>(turn);
    NamedBarrier::arrive(kConsumers * kWarpGroup, end_of + kGroup);
    NamedBarrier::sync(kConsumers * kWarpGroup, end_of + kOther);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row_ + 8 * r;
      const bool exists = row < work_->rows;
      const int head = work_->first_head + row - query_[r] * p_.heads;
      const float sum = sums[0][row] + sums[1][row];
      const bool empty = sum == 0.0F;
      const float lse = empty ? -INFINITY : highest_[r] * p_.scale_log2 / kLog2e + logf(sum);
      const float sink = exists && p_.sink != nullptr ? p_.sink[head] : -INFINITY;
      const float share = empty ? 0.0F : 1.0F / (sum * (1.0F + expf(sink - lse)));
      if (kGroup == 0 && exists && p_.lse != nullptr && (lane_ & 3) == 0) {
        p_.lse[(std::int64_t{work_->token} + query_[r]) * p_.lse_row_stride + head] = lse;
      }
      __nv_bfloat16* to = p_.attended + (work_->first_row + row) * kRank + kGroup * kHalf + 8 * (lane_ & 3);
#pragma unroll
      for (int j = 0; j < kHalf / 8; j += 4) {
        std::uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          pairs[i] = pack(out_[4 * (j + i) + 2 * r] * share, out_[4 * (j + i) + 2 * r + 1] * share);
        }
        transpose_quad(pairs, lane_);
        if (exists) {
          *reinterpret_cast<uint4*>(to + 8 * j) = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
        }
      }
    }
  }

  const Params& p_;
  SharedStorage<kQk>& smem_;
  const int lane_;
  const int
      row_;  ///< of the thread's accumulators, element c + 2 r + 4 j is column 8 j + 2 (lane % 4) + c of row_ + 8 r
  const std::uint32_t base_;        ///< of the shared storage, in units of 16 bytes
  const TileWork* work_ = nullptr;  ///< read where it is needed: registers are scarce
  float out_[128];
  float scores_[32];
  std::uint32_t weights_[16];
  int query_[2];                               ///< of the tile, that the thread's rows belong to
  const unsigned long long* masks_ = nullptr;  ///< of the next own block
  std::uint32_t mask_[2][2];
  float highest_[2];  ///< of the raw scores, as far as weights are relative to it
  float sum_[2];      ///< of the weights of the own blocks in this thread's columns, relative to highest_
  float factor_[2];   ///< of what has been accumulated, not yet applied
  std::uint32_t k_phase_[2] = {0, 0};
  std::uint32_t q_phase_ = 0;
  int parity_ = 0;
};

}  // namespace headrace::attention::mqa::sm90
