// SPDX-License-Identifier: Apache-2.0
#include "selection/lightning.h"

#include <algorithm>

#include "device/tile_products.h"

namespace headrace::selection {
namespace {

std::vector<float> floats(std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n)); }

template <class T>
void widen_rows(const View<const T>& query, std::int64_t token, std::int64_t rows, float* out) {
  for (std::int64_t t = token; t < token + rows; ++t) {
    for (std::int64_t h = 0; h < query.dim(1); ++h) {
      const T* values = query.at(t, h);
      for (std::int64_t d = 0; d < query.dim(2); ++d) {
        *out++ = static_cast<float>(values[d * query.stride(2)]);
      }
    }
  }
}

}  // namespace

void validate_queries(const IndexerGeometry& indexer, DType compute, const IndexQueries& queries) {
  queries.query.expect("index query", {-1, indexer.num_heads, indexer.head_dim});
  expect_dtype("index query", compute, queries.query.dtype());
  queries.head_weight.expect("head_weight", {queries.query.dim(0), indexer.num_heads});
}

Scorer::Scorer(const IndexerGeometry& indexer, ScoreBlock block)
    : heads_(indexer.num_heads),
      dim_(indexer.head_dim),
      block_(block),
      query_(floats(block.rows * heads_ * dim_)),
      weight_(floats(block.rows * heads_)),
      key_(floats(block.candidates * dim_)),
      products_(floats(block.rows * heads_ * block.candidates)),
      scores_(floats(block.candidates)) {}

std::int64_t Scorer::bytes(const IndexerGeometry& indexer, ScoreBlock block) noexcept {
  const std::int64_t head_rows = block.rows * indexer.num_heads;
  const std::int64_t values =
      head_rows * (indexer.head_dim + 1 + block.candidates) + block.candidates * (indexer.head_dim + 1);
  return values * static_cast<std::int64_t>(sizeof(float));
}

void Scorer::load_rows(const IndexQueries& queries, std::int64_t token, std::int64_t rows) {
  rows_ = rows;
  if (queries.query.dtype() == DType::float32) {
    widen_rows(queries.query.as<float>("index query"), token, rows, query_.data());
  } else {
    widen_rows(queries.query.as<bfloat16>("index query"), token, rows, query_.data());
  }
  float* weight = weight_.data();
  for (std::int64_t t = token; t < token + rows; ++t) {
    for (std::int64_t h = 0; h < heads_; ++h) {
      *weight++ = queries.head_weight(t, h);
    }
  }
}

void Scorer::load_candidates(const IndexKeyReader& reader, std::int64_t begin, std::int64_t end) {
  reader.read(begin, end, key_.data());
  device::products_nt(rows_ * heads_, end - begin, dim_, query_.data(), dim_, key_.data(), dim_, products_.data(),
                      block_.candidates);
}

const float* Scorer::scores(std::int64_t row, std::int64_t n) {
  float* const scores = scores_.data();
  std::fill_n(scores, n, 0.0F);
  for (std::int64_t h = row * heads_; h < (row + 1) * heads_; ++h) {
    const float weight = weight_[static_cast<std::size_t>(h)];
    const float* const products = products_.data() + h * block_.candidates;
    for (std::int64_t c = 0; c < n; ++c) {
      scores[c] += weight * std::max(products[c], 0.0F);  // in this order NaN stays NaN
    }
  }
  return scores;
}

}  // namespace headrace::selection
