// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "headrace/attention.h"
#include "options.h"
#include "step.h"

namespace headrace::app {

/// Where neighbouring rows of a request are computed differently: rows on both sides are worth a look.
struct Boundaries {
  std::int64_t chunk = 0;           ///< new tokens a step; 0: none
  std::int64_t covered_prefix = 0;  ///< rows below it are covered
};

inline constexpr std::int64_t kRowsToCheck = 64;

/// At most `most` positions of a request's new tokens [context_len, seq_len), ascending: the first, the last, both
/// sides of the coverage boundary; then both sides of page, chunk and tile boundaries, drawn by seed where they are too
/// many, for up to three quarters of the rows; the rest by seed.
[[nodiscard]] std::vector<std::int64_t> rows_to_check(const RequestSpec& request, const Boundaries& boundaries,
                                                      std::int64_t most, std::uint64_t seed);

/// Largest errors against the float64 oracle that pass, where the products that sum to scores are of ordinary size.
struct CheckTolerance {
  double row = 0.0;  ///< of ||row - oracle row|| / ||oracle row||
  double lse = 0.0;  ///< of |LSE - oracle LSE| / max(1, |oracle LSE|)
  /// The most that rounding_allowance() may be, so that no error above a tenth passes in bfloat16, and none above a
  /// thousandth in float32, however large the scores are: a layer whose rounding takes more tells no fault from it.
  double most_allowance = 1.0;
};
[[nodiscard]] CheckTolerance check_tolerance(DType compute);

/// How many times a tolerance rounding may take. It moves a score in proportion to the products that sum to it, and
/// softmax passes that on. 1 up to a norm of 3 (scores with a standard deviation of 3, where products are independent),
/// then in proportion; 1 for a norm that is not finite.
/// @param score_norm  see attention::OracleRow
[[nodiscard]] double rounding_allowance(double score_norm) noexcept;

/// A row and how far it is from the oracle's, divided by its rounding_allowance(), capped as CheckTolerance says. An
/// infinite error stands for one that is no number.
struct RowError {
  std::int64_t request = 0;
  std::int64_t position = 0;
  double error = 0.0;
};

/// Compares attention outputs with the float64 oracle, step by step.
class OracleCheck {
 public:
  /// @param rows  the positions to compare, ascending, one list a request
  OracleCheck(CheckTolerance tolerance, std::vector<std::vector<std::int64_t>> rows)
      : tolerance_(tolerance), rows_(std::move(rows)) {}

  /// Compares those rows of one step. `out` is [T, H, v], `lse` [T, H].
  void add(const Attention& attention, const Weights& weights, const Inputs& inputs, const Step& step, ConstAnyView out,
           View<const float> lse, int threads);

  [[nodiscard]] const CheckTolerance& tolerance() const noexcept { return tolerance_; }
  [[nodiscard]] std::int64_t rows() const noexcept { return compared_; }
  [[nodiscard]] const RowError& worst_row() const noexcept { return worst_row_; }
  [[nodiscard]] const RowError& worst_lse() const noexcept { return worst_lse_; }
  /// Root mean square over the rows and heads that were compared; see attention::OracleRow.
  [[nodiscard]] double score_norm() const noexcept;
  [[nodiscard]] bool pass() const noexcept {
    return worst_row_.error <= tolerance_.row && worst_lse_.error <= tolerance_.lse;
  }

 private:
  CheckTolerance tolerance_;
  std::vector<std::vector<std::int64_t>> rows_;
  std::int64_t compared_ = 0;
  RowError worst_row_;
  RowError worst_lse_;
  double squared_score_norms_ = 0.0;
  std::int64_t scores_ = 0;
};

/// The rows of --check: a sample or all of each request's new tokens.
[[nodiscard]] std::vector<std::vector<std::int64_t>> rows_to_check(const std::vector<RequestSpec>& batch,
                                                                   const SelectionRule& rule, const Options& options,
                                                                   Check check);

/// ||difference|| / ||reference||: 0 when both are 0, infinite when it is no number.
[[nodiscard]] double relative_error(double squared_difference, double squared_reference) noexcept;

}  // namespace headrace::app
