// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/mma_sm80.hpp>

#include "selection/cuda/step.cuh"

namespace headrace::selection::cuda {

/// The rows of a step that are scored together, and where their scores go.
struct ScoreParams {
  Pages<const std::byte> cache;
  DeviceRequests requests;
  const __nv_bfloat16* query;
  const float* weight;
  std::int64_t query_row_stride;
  std::int64_t query_head_stride;
  std::int64_t weight_row_stride;
  std::int64_t weight_head_stride;
  std::int64_t heads;
  std::int64_t dim;
  bool vector;                        // whether keys and queries can be read eight values at a time
  const std::int64_t* scoring_begin;  // null: every row
  std::int64_t scoring_begin_stride;
  std::int64_t longest;      // no row at a position from here on
  std::int64_t pool;         // keys of a candidate
  std::int64_t not_scored;   // rows that see no more candidates than this are left out
  std::int64_t first_token;  // rows of the tokens [first_token, end_token)
  std::int64_t end_token;
  float* scores;  // [end_token - first_token, pitch]
  std::int64_t pitch;

  /// The first position of a request that is scored, at most `longest`.
  [[nodiscard]] __device__ std::int64_t begin_of(std::int64_t request) const {
    return scoring_begin == nullptr ? 0 : min(scoring_begin[request * scoring_begin_stride], longest);
  }
};

/// Tokens [begin, end) of one request that see some of a block's candidates.
struct Run {
  std::int64_t request;
  std::int64_t begin;
  std::int64_t end;
  std::int64_t to_position;  // from a token's number
  std::int64_t next;         // token where the next run may begin
};

/// @param token  the first of [token, end) that is at hand
inline __device__ Run find_run(const ScoreParams& p, std::int64_t token, std::int64_t end,
                               std::int64_t first_candidate) {
  const Row row = p.requests.find_row(token);
  if (row.request < 0) {
    return {-1, token, token, 0, token + 1};
  }
  const std::int64_t sees_one = p.pool * (max(p.not_scored, first_candidate) + 1) - 1;
  const std::int64_t to_position = row.position - token;
  const std::int64_t next = min(end, row.end);
  return {row.request, max(token, max(sees_one, p.begin_of(row.request)) - to_position),
          min(next, p.longest - to_position), to_position, next};
}

/// The scores of a run's tokens for a block's candidates, by one block of threads. (select.cu has the arithmetic.)
class RunScorer {
 public:
  static constexpr int kThreads = 128;
  static constexpr int kCandidates = 128;  // one a thread, 32 a warp
  static constexpr int kStep = 16;         // values that one instruction multiplies
  static constexpr int kHeads = 32;        // multiplied at once
  static constexpr int kDepth = 128;       // values of a key or a head in shared memory
  static constexpr int kEight = 8;         // values of 16 bytes
  static constexpr int kPitch = kDepth / kEight + 1;

  /// Shared memory of a block.
  struct Tile {
    uint4 key[kCandidates][kPitch];
    uint4 query[kHeads][kPitch];
    float weight[kHeads];
    const std::byte* key_row[kCandidates];  // null: no page
  };

  __device__ RunScorer(const ScoreParams& p, Tile& tile, const Run& run, std::int64_t first_candidate)
      : p_(p),
        tile_(tile),
        run_(run),
        first_candidate_(first_candidate),
        candidates_((run.end + run.to_position) / p.pool - first_candidate),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        warp_candidate_(static_cast<int>(threadIdx.x) / kWarp * kWarp) {}

  __device__ void run() const {
    const bool keys_stay = p_.dim <= kDepth;
    find_keys();
    if (keys_stay) {
      __syncthreads();  // the rows are known, and the run before has been multiplied
      load_keys(0);
    }
    for (std::int64_t token = run_.begin; token < run_.end; ++token) {
      float sums[2 * kCandidateTiles] = {};
      for (std::int64_t head = 0; head < p_.heads; head += kHeads) {
        float products[kCandidateTiles][kHeadTiles][4] = {};
        for (std::int64_t depth = 0; depth < p_.dim; depth += kDepth) {
          __syncthreads();  // what is in the tile has been multiplied
          if (!keys_stay) {
            load_keys(depth);
          }
          load_queries(token, head, depth);
          __syncthreads();
          multiply(head, depth, products);
        }
        add_heads(head, products, sums);
      }
      store(token, sums);
    }
  }

 private:
  static constexpr int kWarp = 32;
  static constexpr int kCandidateTiles = kCandidates / (kThreads / kWarp) / 16;  // of a warp
  static constexpr int kHeadTiles = kHeads / 8;
  static_assert(kCandidateTiles == 2, "the four lanes of a candidate write the four candidates they share");

  using Products = float[kCandidateTiles][kHeadTiles][4];

  __device__ void find_keys() const {
    const std::int64_t own = threadIdx.x;
    const std::int64_t position = (first_candidate_ + own + 1) * p_.pool - 1;
    tile_.key_row[own] = own < candidates_ ? p_.cache.key_row(p_.requests, run_.request, position) : nullptr;
  }

  /// Calls body(row, eight) for rows [0, n) and the eights of values of the tile from `depth` on.
  template <class Body>
  __device__ void for_eights(int n, std::int64_t depth, const Body& body) const {
    constexpr int kEights = kDepth / kEight;
    const int eight = static_cast<int>(threadIdx.x) % kEights;
    if (depth + eight * kEight >= p_.dim) {
      return;
    }
#pragma unroll 4
    for (int row = static_cast<int>(threadIdx.x) / kEights; row < n; row += kThreads / kEights) {
      body(row, eight);
    }
  }

  __device__ void load_keys(std::int64_t depth) const {
    constexpr uint4 kNans = {~0U, ~0U, ~0U, ~0U};
    for_eights(kCandidates, depth, [&](int row, int eight) {
      const auto* values = reinterpret_cast<const __nv_bfloat16*>(tile_.key_row[row]);
      tile_.key[row][eight] = values != nullptr   ? load_eight(values + depth + eight * kEight, p_.vector)
                              : row < candidates_ ? kNans
                                                  : uint4{};
    });
  }

  __device__ void load_queries(std::int64_t token, std::int64_t head, std::int64_t depth) const {
    const __nv_bfloat16* values = p_.query + token * p_.query_row_stride + head * p_.query_head_stride + depth;
    for_eights(kHeads, depth, [&](int row, int eight) {
      tile_.query[row][eight] =
          head + row < p_.heads ? load_eight(values + row * p_.query_head_stride + eight * kEight, p_.vector) : uint4{};
    });
    const std::int64_t own = threadIdx.x;
    if (own < kHeads && head + own < p_.heads) {
      tile_.weight[own] = p_.weight[token * p_.weight_row_stride + (head + own) * p_.weight_head_stride];
    }
  }

  /// Four 8 x 8 matrices: of each, a lane gets two values of row lane / 4.
  static __device__ void load_matrices(const uint4& own_row, std::uint32_t (&out)[4]) {
    cute::SM75_U32x4_LDSM_N::copy(reinterpret_cast<const cute::uint128_t&>(own_row), out[0], out[1], out[2], out[3]);
  }

  static __device__ void multiply_add(const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, float (&c)[4]) {
    cute::SM80_16x8x16_F32BF16BF16F32_TN::fma(c[0], c[1], c[2], c[3], a[0], a[1], a[2], a[3], b0, b1, c[0], c[1], c[2],
                                              c[3]);
  }

  __device__ void multiply(std::int64_t head, std::int64_t depth, Products& products) const {
    const auto steps = static_cast<int>(min(static_cast<std::int64_t>(kDepth), p_.dim - depth)) / kStep;
    for (int step = 0; step < steps; ++step) {
      std::uint32_t keys[kCandidateTiles][4];
#pragma unroll
      for (int c = 0; c < kCandidateTiles; ++c) {
        load_matrices(tile_.key[warp_candidate_ + c * 16 + lane_ % 16][2 * step + lane_ / 16], keys[c]);
      }
#pragma unroll
      for (int h = 0; h < kHeadTiles; h += 2) {
        if (head + h * 8 < p_.heads) {
          std::uint32_t queries[4];
          load_matrices(tile_.query[h * 8 + lane_ / 16 * 8 + lane_ % 8][2 * step + lane_ / 8 % 2], queries);
#pragma unroll
          for (int c = 0; c < kCandidateTiles; ++c) {
            multiply_add(keys[c], queries[0], queries[1], products[c][h]);
            multiply_add(keys[c], queries[2], queries[3], products[c][h + 1]);
          }
        }
      }
    }
  }

  /// Adds weight * max(0, product) of this lane's heads: two of every eight.
  __device__ void add_heads(std::int64_t head, const Products& products, float (&sums)[2 * kCandidateTiles]) const {
#pragma unroll
    for (int h = 0; h < 2 * kHeadTiles; ++h) {
      const int own = h / 2 * 8 + lane_ % 4 * 2 + h % 2;
      if (head + own < p_.heads) {
        const float weight = tile_.weight[own];
#pragma unroll
        for (int s = 0; s < 2 * kCandidateTiles; ++s) {
          const float product = products[s / 2][h / 2][s % 2 * 2 + h % 2];
          sums[s] += weight * (product < 0.0F ? 0.0F : product);  // in this order NaN stays NaN
        }
      }
    }
  }

  /// The four lanes that share four candidates add their heads up, and each writes one.
  __device__ void store(std::int64_t token, const float (&sums)[2 * kCandidateTiles]) const {
    float own = 0.0F;
#pragma unroll
    for (int s = 0; s < 2 * kCandidateTiles; ++s) {
      float sum = sums[s];
      sum += __shfl_xor_sync(0xffffffffU, sum, 1);
      sum += __shfl_xor_sync(0xffffffffU, sum, 2);
      own = lane_ % 4 == s ? sum : own;
    }
    const std::int64_t candidate = first_candidate_ + warp_candidate_ + lane_ % 4 * 8 + lane_ / 4;
    if (candidate < (token + run_.to_position + 1) / p_.pool) {
      p_.scores[(token - p_.first_token) * p_.pitch + candidate] = own;
    }
  }

  const ScoreParams& p_;
  Tile& tile_;
  const Run& run_;
  std::int64_t first_candidate_;
  std::int64_t candidates_;  // of the block that the run's last token sees
  int lane_;
  int warp_candidate_;  // the warp's first, within the block
};

}  // namespace headrace::selection::cuda
