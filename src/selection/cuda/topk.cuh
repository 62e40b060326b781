// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The best of a row of scores, found by one block of threads. The order is that of selection::TopK on the processor:
/// higher scores first, of equal ones the lower index, -0 equal to +0, and NaN below everything.
namespace headrace::selection::cuda {

/// A radix select: three reads of the row narrow down the rank of the k-th best by 11, 11 and 10 bits, each by a
/// histogram in shared memory; a fourth read takes what is better, and of what is equal the first, in ascending order.
class BlockTopK {
 public:
  static constexpr int kThreads = 256;

  /// Shared memory of a block.
  struct Storage {
    std::uint32_t bins[1 << 11];
    std::uint32_t warp_totals[kThreads / 32];
    std::uint32_t bin;     // that holds the k-th best
    std::uint32_t wanted;  // how many of that bin are taken
  };

  /// @param scores  [n], aligned to 16 bytes
  __device__ BlockTopK(const float* scores, std::int64_t n, Storage& storage)
      : scores_(scores), n_(n), storage_(storage) {}

  /// Calls take(i, index) once for each i in [0, k), with ascending indices. All threads of the block call it.
  /// @param k  in [1, n]
  template <class Take>
  __device__ void take_best(std::int64_t k, const Take& take) const {
    std::uint32_t worst = 0;  // rank of the k-th best
    auto ties = static_cast<std::uint32_t>(k);
    for (int shift = 32; shift > 0;) {
      const int bits = shift == 32 || shift == 21 ? 11 : 10;
      shift -= bits;
      count(worst, shift, bits);
      find_bin(ties);
      worst |= storage_.bin << shift;
      ties = storage_.wanted;
    }
    take_from(worst, ties, k, take);
  }

 private:
  static constexpr int kWarp = 32;
  static constexpr int kItems = 4;  // scores that a thread reads at once
  static constexpr int kBins = 1 << 11;

  struct Items {
    std::uint32_t rank[kItems];
  };
  struct Scan {
    std::uint32_t before;  // sum over the threads before this one
    std::uint32_t total;
  };

  /// Maps floats to integers of the same order; 0 is left for NaN.
  static __device__ std::uint32_t rank_of(float score) {
    const std::uint32_t bits = __float_as_uint(score + 0.0F);  // -0 + 0 is +0
    return score != score ? 0 : (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  }

  /// Ranks of the scores from `first` on, which is a multiple of kItems; those past the end are 0, the lowest
  /// rank at the highest indices: with k <= n none of them is taken.
  __device__ Items read(std::int64_t first) const {
    float4 v{};
    if (first + kItems <= n_) {
      v = *reinterpret_cast<const float4*>(scores_ + first);
      return {{rank_of(v.x), rank_of(v.y), rank_of(v.z), rank_of(v.w)}};
    }
    Items items{};
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      items.rank[i] = first + i < n_ ? rank_of(scores_[first + i]) : 0;
    }
    return items;
  }

  /// Counts, by their next `bits` bits, the scores whose rank agrees with `prefix` above these.
  __device__ void count(std::uint32_t prefix, int shift, int bits) const {
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) {
      storage_.bins[i] = 0;
    }
    __syncthreads();
    for (std::int64_t first = threadIdx.x * kItems; first < n_; first += kThreads * kItems) {
      const Items items = read(first);
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const std::uint64_t differs = items.rank[i] ^ prefix;
        if (differs >> (shift + bits) == 0) {
          atomicAdd(&storage_.bins[items.rank[i] >> shift & ((1U << bits) - 1)], 1U);
        }
      }
    }
    __syncthreads();
  }

  /// Looks for the bin in which the count from the highest bin down reaches `wanted`.
  __device__ void find_bin(std::uint32_t wanted) const {
    constexpr int kOwn = kBins / kThreads;
    const int highest = kBins - 1 - static_cast<int>(threadIdx.x) * kOwn;
    std::uint32_t own = 0;
    for (int i = 0; i < kOwn; ++i) {
      own += storage_.bins[highest - i];
    }
    std::uint32_t better = scan(own).before;
    if (better < wanted && wanted <= better + own) {
      int bin = highest;
      while (wanted > better + storage_.bins[bin]) {
        better += storage_.bins[bin--];
      }
      storage_.bin = static_cast<std::uint32_t>(bin);
      storage_.wanted = wanted - better;
    }
    __syncthreads();
  }

  template <class Take>
  __device__ void take_from(std::uint32_t worst, std::uint32_t ties, std::int64_t k, const Take& take) const {
    std::uint32_t better_before = 0;
    std::uint32_t equal_before = 0;
    for (std::int64_t chunk = 0; chunk < n_ && better_before + min(equal_before, ties) < k;
         chunk += kThreads * kItems) {
      const std::int64_t first = chunk + threadIdx.x * kItems;
      const Items items = read(first);
      std::uint32_t own = 0;  // better ones in the low half, equal ones in the high half
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        own += items.rank[i] > worst ? 1U : items.rank[i] == worst ? 1U << 16 : 0U;
      }
      const Scan scanned = scan(own);
      std::uint32_t better = better_before + (scanned.before & 0xffffU);
      std::uint32_t equal = equal_before + (scanned.before >> 16);
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (items.rank[i] < worst) {
          continue;
        }
        const bool is_better = items.rank[i] > worst;
        if (is_better || equal < ties) {
          take(better + min(equal, ties), first + i);
        }
        ++(is_better ? better : equal);
      }
      better_before += scanned.total & 0xffffU;
      equal_before += scanned.total >> 16;
    }
  }

  __device__ Scan scan(std::uint32_t value) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    std::uint32_t until = value;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const std::uint32_t below = __shfl_up_sync(0xffffffffU, until, distance);
      until += lane >= distance ? below : 0;
    }
    __syncthreads();  // the totals of the scan before have been read
    if (lane == kWarp - 1) {
      storage_.warp_totals[warp] = until;
    }
    __syncthreads();
    Scan result{until - value, 0};
#pragma unroll
    for (int w = 0; w < kThreads / kWarp; ++w) {
      const std::uint32_t total = storage_.warp_totals[w];
      result.before += w < warp ? total : 0;
      result.total += total;
    }
    return result;
  }

  const float* scores_;
  std::int64_t n_;
  Storage& storage_;
};

}  // namespace headrace::selection::cuda
