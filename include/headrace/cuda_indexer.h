// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "headrace/cuda.h"
#include "headrace/export.h"
#include "headrace/indexer.h"

/// The indexer on a GPU, in bfloat16. Every view is on the GPU's memory, but the structures that hold views are on the
/// host. Each function queues work on `stream`, a stream of `device`, and returns: it allocates nothing, waits for
/// nothing, and can be captured in a CUDA graph. Lengths, pages and slots are read when the work runs; whatever they
/// hold, nothing outside the views is read or written.
namespace headrace {

/// `append_index_keys` (headrace/indexer.h) on a GPU. Keys and gates come out bit for bit as there, pooled keys within
/// the rounding of exp. A slot outside [0, num_slots()) is skipped, as -1 is. Where a pool's other tokens have no page
/// in the cache, its last token keeps its own key.
/// @param key   [T, D] bfloat16 with contiguous rows
/// @param gate  [T, D] likewise
/// @throws Error for shapes, dtypes and strides that do not suit, or where CUDA reports an error
HEADRACE_EXPORT void append_index_keys(const IndexerGeometry& indexer, const MutableCacheView& cache, ConstAnyView key,
                                       ConstAnyView gate, View<const float> offset_bias, const Requests& requests,
                                       View<const std::int64_t> slot_mapping, const CudaDevice& device, Stream stream);

/// Bytes of workspace for `select` on a GPU.
struct SelectWorkspace {
  std::int64_t least = 0;   ///< the scores of one row, 4 bytes for each key (lightning) or complete pool (k-pool); 0
                            ///< where every row takes all that it sees
  std::int64_t useful = 0;  ///< more brings nothing: about 32 MiB, or the scores of 16 rows
};

/// For steps of up to `tokens` query tokens whose requests have up to `longest_seq_len` keys.
/// @throws Error for an indexer that is out of range
[[nodiscard]] HEADRACE_EXPORT SelectWorkspace cuda_select_workspace(const IndexerGeometry& indexer, std::int64_t tokens,
                                                                    std::int64_t longest_seq_len);

/// `select` (headrace/indexer.h) on a GPU; scores may differ from those there by float32 rounding. A row's result
/// depends on nothing but the row's own query and keys: not on the batch, chunks, bounds, workspace or range of rows.
/// Rows of no request, and at positions from `longest_seq_len` on, get count 0. A key whose page lies outside the cache
/// or the block table is not read; its score is NaN, which ranks last.
/// @param queries          query [T, heads, D] with contiguous rows, D a multiple of 16; T may exceed the requests'
///                         tokens
/// @param scoring_begin    [B], or empty: every row. It saves nothing where rows take all that they see, which are not
///                         scored anyhow
/// @param longest_seq_len  a bound on the requests' seq_len
/// @param index            [T, at least rule().width()]
/// @param workspace        at least cuda_select_workspace(...).least bytes, at an address divisible by 16
/// @param rows             the rows to make; the others are not written
/// @throws Error for shapes, dtypes, strides or requirements that are not met, too little workspace, or where CUDA
///         reports an error
HEADRACE_EXPORT void select(const IndexerGeometry& indexer, const CacheView& cache, const IndexQueries& queries,
                            const Requests& requests, View<const std::int64_t> scoring_begin,
                            std::int64_t longest_seq_len, View<std::int32_t> index, View<std::int32_t> count,
                            std::span<std::byte> workspace, const CudaDevice& device, Stream stream,
                            TokenRange rows = {});

/// The scores that `select` ranks, for checks and tools, and for engines with a choice of their own: row t holds those
/// of the keys (lightning) or complete pools (k-pool) that token t sees; the rest is not written.
/// @param scores  [T, at least as many as `longest_seq_len` keys hold] with contiguous rows
/// @param rows    the rows to make; the others are not written
/// @throws Error as `select` does
HEADRACE_EXPORT void score_rows(const IndexerGeometry& indexer, const CacheView& cache, const IndexQueries& queries,
                                const Requests& requests, std::int64_t longest_seq_len, View<float> scores,
                                const CudaDevice& device, Stream stream, TokenRange rows = {});

}  // namespace headrace
