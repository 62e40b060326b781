// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headrace/indexer.h"

namespace headrace::selection {

/// headrace::score_row for every token of a range: row t of `scores` holds those of token t, the rest is not written.
/// @param scores  [T, at least as many as a row of the range sees]
/// @throws Error as `score_row` does, before anything is written
void score_rows(const IndexerGeometry& indexer, DType compute, const CacheView& cache, const IndexQueries& queries,
                const Requests& requests, View<float> scores, TokenRange rows);

}  // namespace headrace::selection
