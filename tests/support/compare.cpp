// SPDX-License-Identifier: Apache-2.0
#include "support/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace headrace::test {
namespace {

constexpr double kCancelled = 0.01;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Keeps the larger, and NaN once it has come.
void keep_worst(double& worst, double error) {
  if (std::isnan(error) || error > worst) {
    worst = error;
  }
}

double row_error(const AttentionCase& problem, const OutputBuffer& result, const attention::OracleRow& expected,
                 std::int64_t token) {
  const Geometry& g = problem.attention().geometry;
  double difference = 0.0;
  double norm = 0.0;
  bool attends = false;
  for (std::int64_t head = 0; head < g.num_heads; ++head) {
    attends = attends || !std::isinf(expected.lse[at(head)]);
    for (std::int64_t i = 0; i < g.v_head_dim; ++i) {
      const double want = expected.out[at(head * g.v_head_dim + i)];
      difference += std::pow(result.out(token, head, i) - want, 2);
      norm += want * want;
    }
  }
  if (!attends) {
    return difference == 0.0 ? 0.0 : std::numeric_limits<double>::infinity();
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), kCancelled * problem.value_norm(expected));
}

double lse_error(const OutputBuffer& result, const attention::OracleRow& expected, std::int64_t token) {
  double worst = 0.0;
  for (std::size_t head = 0; head < expected.lse.size(); ++head) {
    const double want = expected.lse[head];
    const double have = static_cast<double>(result.lse(token, static_cast<std::int64_t>(head)));
    if (std::isinf(want)) {
      keep_worst(worst, have == want ? 0.0 : std::numeric_limits<double>::infinity());
    } else {
      keep_worst(worst, std::fabs(have - want) / std::max(1.0, std::fabs(want)));
    }
  }
  return worst;
}

}  // namespace

Tolerance tolerance_of(DType compute) {
  return compute == DType::float32 ? Tolerance{1e-5, 1e-5} : Tolerance{2e-2, 2e-2};
}

Comparison compare(const AttentionCase& problem, const OutputBuffer& result,
                   std::span<const attention::OracleRow> oracle, const Tolerance& tolerance) {
  Comparison comparison;
  for (const attention::OracleQuery& query : problem.queries()) {
    const attention::OracleRow& expected = oracle[at(query.token)];
    const double row = row_error(problem, result, expected, query.token);
    const double lse = result.has_lse() ? lse_error(result, expected, query.token) : 0.0;
    keep_worst(comparison.worst_row, row);
    keep_worst(comparison.worst_lse, lse);
    const bool passes = row <= tolerance.row && lse <= tolerance.lse;  // false for NaN
    if (!passes && !comparison.failure) {
      std::ostringstream text;
      text << "token " << query.token << " (request " << query.request << ", position " << query.position
           << "): row error " << row << " (at most " << tolerance.row << "), LSE error " << lse << " (at most "
           << tolerance.lse << ")";
      comparison.failure = text.str();
    }
  }
  if (!comparison.failure) {
    comparison.failure = result.damage();
  }
  return comparison;
}

}  // namespace headrace::test
