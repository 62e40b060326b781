// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cache/requests.h"
#include "headrace/error.h"
#include "headrace/indexer.h"
#include "selection/candidates.h"
#include "selection/index_cache.h"
#include "selection/lightning.h"
#include "selection/score_rows.h"
#include "selection/token_range.h"

namespace headrace {
namespace {

constexpr std::int64_t kCandidatesAtOnce = 256;

/// Scores of one row, into as many entries as it sees candidates.
void score_one(const IndexerGeometry& indexer, const selection::IndexKeyReader& reader, const IndexQueries& queries,
               std::int64_t token, std::int64_t seen, View<float> scores) {
  selection::Scorer scorer(indexer, {1, kCandidatesAtOnce});
  scorer.load_rows(queries, token, 1);
  for (std::int64_t begin = 0; begin < seen; begin += kCandidatesAtOnce) {
    const std::int64_t end = std::min(seen, begin + kCandidatesAtOnce);
    scorer.load_candidates(reader, begin, end);
    const float* const block = scorer.scores(0, end - begin);
    for (std::int64_t c = begin; c < end; ++c) {
      scores(c) = block[c - begin];
    }
  }
}

}  // namespace

std::int64_t score_row(const IndexerGeometry& indexer, DType compute, const CacheView& cache,
                       const IndexQueries& queries, const Requests& requests, std::int64_t request, std::int64_t token,
                       View<float> scores) {
  using namespace selection;
  validate_index_cache(indexer, compute, cache);
  validate_queries(indexer, compute, queries);
  const std::vector<cache::Request> spans = cache::validate_requests(requests, queries.query.dim(0));
  if (request < 0 || request >= static_cast<std::int64_t>(spans.size())) {
    throw Error("request", fmt::format("a number in [0, {})", spans.size()), std::to_string(request));
  }
  const cache::Request& span = spans[static_cast<std::size_t>(request)];
  const std::int64_t row = token - span.first_token;
  if (row < 0 || row >= span.query_len) {
    throw Error("token", fmt::format("a number in [{}, {})", span.first_token, span.first_token + span.query_len),
                std::to_string(token));
  }
  const Candidates candidates = Candidates::of(indexer);
  const std::int64_t keys = span.context_len() + row + 1;
  const std::int64_t seen = candidates.among(keys);
  scores.expect("scores", {-1});
  if (scores.dim(0) < seen) {
    throw Error("scores", fmt::format("at least {} entries", seen), std::to_string(scores.dim(0)));
  }
  cache::validate_pages(requests, request, 0, keys, cache);

  const IndexKeyReader reader(indexer, compute, cache, requests, request);
  score_one(indexer, reader, queries, token, seen, scores);
  return seen;
}

void selection::score_rows(const IndexerGeometry& indexer, DType compute, const CacheView& cache,
                           const IndexQueries& queries, const Requests& requests, View<float> scores, TokenRange rows) {
  validate_index_cache(indexer, compute, cache);
  validate_queries(indexer, compute, queries);
  const std::int64_t tokens = queries.query.dim(0);
  const std::vector<cache::Request> spans = cache::validate_requests(requests, tokens);
  const TokenRange range = within_step(rows, tokens);
  scores.expect("scores", {tokens, -1});
  const Candidates candidates = Candidates::of(indexer);
  for (const cache::Request& span : spans) {
    const std::int64_t end = std::min(range.end, span.first_token + span.query_len);
    if (std::max(range.begin, span.first_token) >= end) {
      continue;
    }
    const std::int64_t keys = span.context_len() + end - span.first_token;
    if (scores.dim(1) < candidates.among(keys)) {
      throw Error("scores", fmt::format("at least {} columns", candidates.among(keys)), std::to_string(scores.dim(1)));
    }
    cache::validate_pages(requests, span.number, 0, keys, cache);
  }
  for (const cache::Request& span : spans) {
    const IndexKeyReader reader(indexer, compute, cache, requests, span.number);
    const std::int64_t end = std::min(range.end, span.first_token + span.query_len);
    for (std::int64_t token = std::max(range.begin, span.first_token); token < end; ++token) {
      const std::int64_t seen = candidates.among(span.context_len() + token - span.first_token + 1);
      score_one(indexer, reader, queries, token, seen,
                View<float>(scores.at(token), 1, {scores.dim(1)}, {scores.stride(1)}));
    }
  }
}

}  // namespace headrace
