// SPDX-License-Identifier: Apache-2.0
#include "headrace/indexer.h"

#include <fmt/format.h>

#include "headrace/error.h"

namespace headrace {
namespace {

// Far above any model; keeps every product of two dimensions and an element size well inside 64 bits.
constexpr std::int64_t kMaxDim = std::int64_t{1} << 20;

void expect_dim(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    throw Error(name, fmt::format("a number in [{}, {}]", low, high), std::to_string(value));
  }
}

}  // namespace

void IndexerGeometry::validate() const {
  expect_dim("indexer num_heads", num_heads, 1, kMaxDim);
  expect_dim("indexer head_dim", head_dim, 1, kMaxDim);
  expect_dim("indexer rope_dim", rope_dim, 0, head_dim);
  if (rope_dim % 2 != 0) {
    throw Error("indexer rope_dim", "an even number", std::to_string(rope_dim));
  }
  if (!(key_norm_epsilon > 0)) {
    throw Error("indexer key_norm_epsilon", "a number > 0", fmt::format("{}", key_norm_epsilon));
  }
  static_cast<void>(rule());
}

SelectionRule IndexerGeometry::rule() const {
  return kpool ? SelectionRule::kpool(topk, pool, tail) : SelectionRule::lightning(topk);
}

std::int64_t IndexerGeometry::cache_row_bytes(DType compute) const noexcept {
  return (kpool ? 2 : 1) * head_dim * size_of(compute);
}

}  // namespace headrace
