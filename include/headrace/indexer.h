// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "headrace/cache.h"
#include "headrace/export.h"
#include "headrace/requests.h"
#include "headrace/selection.h"
#include "headrace/view.h"

namespace headrace {

/// The dimensions of an indexer: lightning (pool 1) or k-pool.
struct HEADRACE_EXPORT IndexerGeometry {
  std::int64_t num_heads = 0;  ///< index_n_heads
  std::int64_t head_dim = 0;   ///< index_head_dim
  std::int64_t topk = 0;       ///< index_topk, in keys
  std::int64_t rope_dim = 0;   ///< rope on the first dims of its heads and key: qk_rope_head_dim, or 0
  bool rope_interleave = false;
  bool kpool = false;              ///< k-pool indexer: keys are scored by pools of `pool`
  std::int64_t pool = 1;           ///< index_kpool
  bool tail = false;               ///< index_kpool_always_select_tail
  double key_norm_epsilon = 1e-6;  ///< of the LayerNorm on the key

  /// @throws Error when a dimension is out of range
  void validate() const;
  /// @throws Error as SelectionRule's constructors do
  [[nodiscard]] SelectionRule rule() const;
  /// Bytes of a row of the indexer's key cache: head_dim values of the compute dtype; for k-pool twice that.
  [[nodiscard]] std::int64_t cache_row_bytes(DType compute) const noexcept;
};

/// The indexer's own keys live in a paged cache with the slots of the latent cache. A row holds, in the compute dtype,
///   lightning: key [D]
///   k-pool:    key [D], gate [D]; once a token completes its pool, the pooled key stands in place of that token's key
///              (its gate and key are needed no more, and a step that rewrites the token computes the pool anew).
/// Writing it is never left out, also where scoring is.
///
/// @param key           [T, D] compute dtype, LayerNorm and rope applied
/// @param gate          [T, D] compute dtype, k-pool only, else empty
/// @param offset_bias   [P, D] float32, k-pool only: the learned bias per offset in the pool, else empty
/// @param slot_mapping  [T]; -1 skips. Two tokens must not name one slot. The other tokens of a pool that a token
///                      completes are read where the block table says they lie, from this step or an earlier one.
/// @throws Error for shapes, dtypes, slots or pages out of range; nothing is written then
HEADRACE_EXPORT void append_index_keys(const IndexerGeometry& indexer, DType compute, const MutableCacheView& cache,
                                       ConstAnyView key, ConstAnyView gate, View<const float> offset_bias,
                                       const Requests& requests, View<const std::int64_t> slot_mapping,
                                       int threads = 0);

/// What the indexer asks with: the score of key j for query t is
///   sum over heads h of head_weight[t, h] * max(0, query[t, h] . key[j])
/// (the constant factors 1/sqrt(head_dim) and 1/sqrt(num_heads) are part of head_weight).
struct IndexQueries {
  ConstAnyView query;             ///< [T, heads, D] compute dtype, rope applied
  View<const float> head_weight;  ///< [T, heads]
};

/// Query tokens [begin, end) of a step, cut to those it has.
struct TokenRange {
  std::int64_t begin = 0;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();
};

/// Scores and selects, for the rows at positions >= scoring_begin[b] of each request; other rows get count 0.
/// Rows never see keys after their own position. Equal scores: the lower position wins.
/// Scores are computed in blocks of rows and keys that fit `workspace_bytes`; [T, S] is never in memory. The result
/// does not depend on the workspace, the threads or how the prompt was cut into chunks. NaN scores rank below all
/// others.
/// @param scoring_begin  [B] from the plan; 0: every row. Empty: every row of every request
/// @param index          [T, at least rule().width()] out: ascending positions, then -1
/// @param count          [T] out
/// @param workspace_bytes  at least select_workspace_minimum(indexer, longest seq_len); more is used where it helps
/// @param rows           the rows to make; the others are not written. So ranks that hold the same indexer share its
///                       work: each makes some rows, then they gather them
/// @throws Error for shapes, dtypes, lengths or pages out of range, or too little workspace
HEADRACE_EXPORT void select(const IndexerGeometry& indexer, DType compute, const CacheView& cache,
                            const IndexQueries& queries, const Requests& requests,
                            View<const std::int64_t> scoring_begin, View<std::int32_t> index, View<std::int32_t> count,
                            std::int64_t workspace_bytes, int threads = 0, TokenRange rows = {});

/// The least workspace with which `select` serves requests of up to `longest_seq_len` keys.
[[nodiscard]] HEADRACE_EXPORT std::int64_t select_workspace_minimum(const IndexerGeometry& indexer,
                                                                    std::int64_t longest_seq_len);

/// The scores of one query token, for checks and tools: of every key (lightning) or every complete pool (k-pool) that
/// the row sees, bit for bit those `select` ranks; `scores` must hold them all. Returns how many there are.
/// @param token  its number among the step's T tokens
/// @throws Error as `select` does, and when the token is not the request's or `scores` is too short
HEADRACE_EXPORT std::int64_t score_row(const IndexerGeometry& indexer, DType compute, const CacheView& cache,
                                       const IndexQueries& queries, const Requests& requests, std::int64_t request,
                                       std::int64_t token, View<float> scores);

}  // namespace headrace
