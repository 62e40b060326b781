// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "headrace/indexer.h"
#include "selection/index_cache.h"

namespace headrace::selection {

/// Throws Error unless shapes and dtypes are the indexer's.
void validate_queries(const IndexerGeometry& indexer, DType compute, const IndexQueries& queries);

/// Query rows and candidates that are scored at once.
struct ScoreBlock {
  std::int64_t rows = 0;
  std::int64_t candidates = 0;
};

/// The lightning score, sum over heads of w * max(0, q . k), for blocks of rows and candidates of one request; the
/// k-pool indexer scores its pooled keys with it. Each score is summed over the dims in an order that depends on
/// head_dim alone and then over the heads in order, so it is the same in every block. One scorer serves one thread.
class Scorer {
 public:
  Scorer(const IndexerGeometry& indexer, ScoreBlock block);
  /// Bytes that a scorer allocates.
  [[nodiscard]] static std::int64_t bytes(const IndexerGeometry& indexer, ScoreBlock block) noexcept;

  [[nodiscard]] const ScoreBlock& block() const noexcept { return block_; }
  /// The rows to score from now on: tokens [token, token + rows), rows <= block().rows.
  void load_rows(const IndexQueries& queries, std::int64_t token, std::int64_t rows);
  /// Multiplies the loaded rows with candidates [begin, end), at most block().candidates.
  void load_candidates(const IndexKeyReader& reader, std::int64_t begin, std::int64_t end);
  /// Scores of a loaded row for the first n loaded candidates; valid until the next call.
  [[nodiscard]] const float* scores(std::int64_t row, std::int64_t n);

 private:
  std::int64_t heads_;
  std::int64_t dim_;
  ScoreBlock block_;
  std::int64_t rows_ = 0;
  std::vector<float> query_;     // [rows * heads, dim]
  std::vector<float> weight_;    // [rows, heads]
  std::vector<float> key_;       // [candidates, dim]
  std::vector<float> products_;  // [rows * heads, candidates]
  std::vector<float> scores_;    // [candidates]
};

}  // namespace headrace::selection
