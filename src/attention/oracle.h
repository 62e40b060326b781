// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "headrace/attention.h"

namespace headrace::attention {

/// One query token's attention in float64.
struct OracleRow {
  std::vector<double> out;  ///< [H * v]
  std::vector<double> lse;  ///< [H]
};

/// The float64 oracle: DESIGN.md's contract written down as plainly as possible, for one query token. It reads the same
/// cache bytes as every path, dequantised and rounded once to the compute dtype, and computes everything after that in
/// float64. Independent of the paths: it shares no code with them but the element conversions of dtype.h.
/// @param request, token  the query token (numbered in 0..T) and the request it belongs to
/// @param position        its request-local position
[[nodiscard]] OracleRow oracle_row(const Attention& attention, const Weights& weights, const Inputs& inputs,
                                   std::int64_t request, std::int64_t token, std::int64_t position);

}  // namespace headrace::attention
