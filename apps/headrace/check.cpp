// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <span>

#include "attention/oracle.h"
#include "attention/tile_arithmetic.h"
#include "output_errors.h"
#include "progress.h"

namespace headrace::app {
namespace {

constexpr std::size_t kOracleRowsAtOnce = 256;  // so that the oracle's float64 rows stay small
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Draws from `candidates` without replacement until `rows` holds `most` rows or nothing is left.
void draw(std::vector<std::int64_t> candidates, std::size_t most, std::mt19937_64& random,
          std::set<std::int64_t>& rows) {
  std::shuffle(candidates.begin(), candidates.end(), random);
  for (const std::int64_t row : candidates) {
    if (rows.size() >= most) {
      return;
    }
    rows.insert(row);
  }
}

/// Rows of [begin, end) on both sides of the multiples of `period`, counted from `origin`.
void add_multiples(std::int64_t origin, std::int64_t period, std::int64_t begin, std::int64_t end,
                   std::vector<std::int64_t>& rows) {
  const std::int64_t first = origin + (begin - origin + period - 1) / period * period;
  for (std::int64_t edge = first; edge < end; edge += period) {
    if (edge > begin) {
      rows.push_back(edge - 1);
    }
    rows.push_back(edge);
  }
}

double squared_norm(const std::vector<double>& values) {
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
}

double allowance(double score_norm, const CheckTolerance& tolerance) {
  return std::min(rounding_allowance(score_norm), tolerance.most_allowance);
}

double row_error(const attention::OracleRow& expected, const ConstAnyView& row, const Geometry& geometry,
                 const CheckTolerance& tolerance) {
  double difference = 0.0;
  double reference = 0.0;
  auto want = expected.out.begin();
  for (std::int64_t h = 0; h < geometry.num_heads; ++h) {
    for (std::int64_t i = 0; i < geometry.v_head_dim; ++i, ++want) {
      const double delta = static_cast<double>(element(row, h * row.stride(1) + i * row.stride(2))) - *want;
      difference += delta * delta;
      reference += *want * *want;
    }
  }
  const double heads = static_cast<double>(expected.score_norm.size());
  return relative_error(difference, reference) /
         allowance(std::sqrt(squared_norm(expected.score_norm) / heads), tolerance);
}

double lse_error(const attention::OracleRow& expected, const View<const float>& lse, std::int64_t token,
                 const CheckTolerance& tolerance) {
  double worst = 0.0;
  for (std::size_t h = 0; h < expected.lse.size(); ++h) {
    const double got = static_cast<double>(lse(token, h));
    const double want = expected.lse[h];
    if (got == want) {  // also where both are -inf
      continue;
    }
    const double error =
        std::abs(got - want) / (std::max(1.0, std::abs(want)) * allowance(expected.score_norm[h], tolerance));
    worst = std::isfinite(error) ? std::max(worst, error) : kInfinity;
  }
  return worst;
}

void keep_worse(RowError& worst, const RowError& error) {
  if (error.error > worst.error) {
    worst = error;
  }
}

}  // namespace

double relative_error(double squared_difference, double squared_reference) noexcept {
  if (squared_difference == 0.0) {
    return 0.0;
  }
  const double error = std::sqrt(squared_difference / squared_reference);
  return std::isnan(error) ? kInfinity : error;
}

std::vector<std::int64_t> rows_to_check(const RequestSpec& request, const Boundaries& boundaries, std::int64_t most,
                                        std::uint64_t seed) {
  const std::int64_t begin = request.context_len;
  const std::int64_t end = request.seq_len();
  std::vector<std::int64_t> all(static_cast<std::size_t>(end - begin));
  std::iota(all.begin(), all.end(), begin);
  if (end - begin <= most) {
    return all;
  }
  std::set<std::int64_t> rows{begin, end - 1};
  for (const std::int64_t row : {boundaries.covered_prefix - 1, boundaries.covered_prefix}) {
    if (row >= begin && row < end) {
      rows.insert(row);
    }
  }
  std::vector<std::int64_t> edges;
  add_multiples(0, PageTable::kPageSize, begin, end, edges);
  // Tiles of the paths start at multiples in the request's own positions, or where the new rows do.
  add_multiples(0, attention::kQueryTile, begin, end, edges);
  add_multiples(begin, attention::kQueryTile, begin, end, edges);
  if (boundaries.chunk > 0) {
    add_multiples(begin, boundaries.chunk, begin, end, edges);
  }
  std::mt19937_64 random(seed);
  draw(std::move(edges), static_cast<std::size_t>(most * 3 / 4), random, rows);
  draw(std::move(all), static_cast<std::size_t>(most), random, rows);
  return {rows.begin(), rows.end()};
}

std::vector<std::vector<std::int64_t>> rows_to_check(const std::vector<RequestSpec>& batch, const SelectionRule& rule,
                                                     const Options& options, Check check) {
  std::vector<std::vector<std::int64_t>> rows;
  const Boundaries boundaries{options.prefill_chunk, rule.covered_prefix()};
  for (const RequestSpec& request : batch) {
    const std::int64_t most = check == Check::all ? request.query_len : kRowsToCheck;
    rows.push_back(rows_to_check(request, boundaries, most, options.seed + rows.size()));
  }
  return rows;
}

CheckTolerance check_tolerance(DType compute) {
  return compute == DType::float32 ? CheckTolerance{1e-5, 1e-5, 100.0} : CheckTolerance{2e-2, 2e-2, 5.0};
}

double rounding_allowance(double score_norm) noexcept {
  constexpr double kOrdinaryNorm = 3.0;
  return std::isfinite(score_norm) ? std::max(1.0, score_norm / kOrdinaryNorm) : 1.0;
}

double OracleCheck::score_norm() const noexcept {
  return scores_ == 0 ? 0.0 : std::sqrt(squared_score_norms_ / static_cast<double>(scores_));
}

void OracleCheck::add(const Attention& attention, const Weights& weights, const Inputs& inputs, const Step& step,
                      ConstAnyView out, View<const float> lse, int threads) {
  std::vector<attention::OracleQuery> queries;
  std::int64_t first = 0;
  for (std::size_t b = 0; b < step.pieces().size(); ++b) {
    const Piece& piece = step.pieces()[b];
    const std::vector<std::int64_t>& rows = rows_[static_cast<std::size_t>(piece.request)];
    for (auto row = std::lower_bound(rows.begin(), rows.end(), piece.begin); row != rows.end() && *row < piece.end;
         ++row) {
      queries.push_back({static_cast<std::int64_t>(b), first + *row - piece.begin, *row});
    }
    first += piece.size();
  }
  Progress progress("check", static_cast<std::int64_t>(queries.size()));
  for (std::size_t done = 0; done < queries.size(); done += kOracleRowsAtOnce) {
    const std::span<const attention::OracleQuery> some =
        std::span(queries).subspan(done, std::min(kOracleRowsAtOnce, queries.size() - done));
    const std::vector<attention::OracleRow> expected =
        attention::oracle_rows(attention, weights, inputs, some, threads);
    for (std::size_t i = 0; i < some.size(); ++i) {
      const attention::OracleQuery& query = some[i];
      const std::int64_t request = step.pieces()[static_cast<std::size_t>(query.request)].request;
      const ConstAnyView row = out.slice(query.token, query.token + 1);
      keep_worse(worst_row_, {request, query.position, row_error(expected[i], row, attention.geometry, tolerance_)});
      keep_worse(worst_lse_, {request, query.position, lse_error(expected[i], lse, query.token, tolerance_)});
      squared_score_norms_ += squared_norm(expected[i].score_norm);
      scores_ += static_cast<std::int64_t>(expected[i].score_norm.size());
    }
    progress.advance(static_cast<std::int64_t>(some.size()));
  }
  compared_ += static_cast<std::int64_t>(queries.size());
}

}  // namespace headrace::app
