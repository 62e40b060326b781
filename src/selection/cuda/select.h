// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "headrace/cuda.h"
#include "headrace/indexer.h"

/// The indexer on a GPU, in bfloat16. Views, but not the structures that hold them, are on the device's memory; calls
/// queue work on a stream, allocate nothing and can be captured in a graph.
namespace headrace::selection::cuda {

/// Why the score kernel cannot serve an indexer; empty when it can.
[[nodiscard]] std::vector<std::string> unmet_requirements(const IndexerGeometry& indexer);

/// The least workspace with which `select` serves requests of up to `longest_seq_len` keys: the scores of one row,
/// 4 bytes for each key (lightning) or complete pool (k-pool); 0 where every row takes all that it sees.
[[nodiscard]] std::int64_t select_workspace_minimum(const IndexerGeometry& indexer, std::int64_t longest_seq_len);

/// What `select` uses at most for steps of up to `tokens` tokens: about 32 MiB, or the scores of 16 rows.
[[nodiscard]] std::int64_t select_workspace_useful(const IndexerGeometry& indexer, std::int64_t tokens,
                                                   std::int64_t longest_seq_len);

/// headrace::select, which has the parameters' meaning; scores may differ from those by float32 rounding. A row's
/// result depends on nothing but the row's own query and keys: not on the batch, chunks, bounds or workspace.
/// Lengths and pages are read on the device. Rows of no request, and at positions from `longest_seq_len` on, get count
/// 0. A key whose page lies outside the cache or the block table is not read; its score is NaN, which ranks last.
/// @param queries          query [T, heads, D] with contiguous rows; T may exceed the requests' tokens
/// @param scoring_begin    [B] or empty
/// @param longest_seq_len  a bound on the requests' seq_len
/// @param workspace        at least select_workspace_minimum(...) bytes, aligned to 16
/// @throws Error for shapes, dtypes, strides or requirements that are not met, or too little workspace
void select(const IndexerGeometry& indexer, const CacheView& cache, const IndexQueries& queries,
            const Requests& requests, View<const std::int64_t> scoring_begin, std::int64_t longest_seq_len,
            View<std::int32_t> index, View<std::int32_t> count, std::span<std::byte> workspace, Stream stream);

/// The scores that `select` ranks, of every row, for checks and tools: row t holds those of the keys (lightning) or
/// complete pools (k-pool) that token t sees; the rest is not written.
/// @param scores  [T, at least as many as `longest_seq_len` keys hold] with contiguous rows
/// @throws Error as `select` does
void score_rows(const IndexerGeometry& indexer, const CacheView& cache, const IndexQueries& queries,
                const Requests& requests, std::int64_t longest_seq_len, View<float> scores, Stream stream);

/// Loads the kernels onto the current device, so that no selection is the first to wait for it. @throws Error
void load_select();

}  // namespace headrace::selection::cuda
