// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headrace/attention.h"

namespace headrace::attention {

/// One query token's attention in float64.
struct OracleRow {
  std::vector<double> out;  ///< [H * v]
  std::vector<double> lse;  ///< [H]
  /// [H] how large the products are that sum to a score: the norm of (scale * query_i * key_i) over the dimensions of
  /// the cache's rows, the largest of the attended keys; 0 where there is none. Rounding one factor of each product
  /// moves a score by about the rounding unit times this.
  std::vector<double> score_norm;
};

/// A query token (numbered in 0..T), the request it belongs to and its request-local position.
struct OracleQuery {
  std::int64_t request = 0;
  std::int64_t token = 0;
  std::int64_t position = 0;
};

/// The float64 oracle: docs/contract.md written down as plainly as possible, for one query token. It reads the same
/// cache bytes as every path, dequantised (code times scale, a float32 product) and rounded once to the compute dtype,
/// and computes everything after that in float64. Independent of the paths: it shares no code with them but the element
/// conversions of dtype.h.
///
/// The triple products q_nope . (W_UK c_j) and sum of p_j (W_UV c_j) are taken as (W_UK^T q_nope) . c_j and
/// W_UV (sum of p_j c_j): the same numbers within 1e-13 of their norm at a cost per key that does not grow with the
/// head dims.
///
/// The row of a rule's covered position attends to every causal key and its selection is not read. A `count` outside
/// [0, width] means the nearer end.
/// @param request, token  the query token (numbered in 0..T) and the request it belongs to
/// @param position        its request-local position
/// @throws Error when the row needs a selection and there is none, or a page of an attended key lies outside the cache
[[nodiscard]] OracleRow oracle_row(const Attention& attention, const Weights& weights, const Inputs& inputs,
                                   std::int64_t request, std::int64_t token, std::int64_t position);

/// The same for many query tokens at once, in parallel. The result does not depend on `threads`.
[[nodiscard]] std::vector<OracleRow> oracle_rows(const Attention& attention, const Weights& weights,
                                                 const Inputs& inputs, std::span<const OracleQuery> queries,
                                                 int threads = 0);

/// A row of the cache as the oracle reads it: latent [R], then rope key [rope], dequantised and rounded once to the
/// compute dtype.
[[nodiscard]] std::vector<float> oracle_cache_row(const Attention& attention, const CacheView& cache,
                                                  std::int64_t slot);

}  // namespace headrace::attention
