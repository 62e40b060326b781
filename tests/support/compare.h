// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "attention/oracle.h"
#include "support/attention_case.h"
#include "support/output_buffer.h"

namespace headrace::test {

/// How far a path may be from the oracle.
struct Tolerance {
  double row = 0.0;  ///< of the worst row, relative
  double lse = 0.0;  ///< of the worst log-sum-exp, absolute up to 1 and relative above
};

/// 1e-5 for float32, 2e-2 for bfloat16.
[[nodiscard]] Tolerance tolerance_of(DType compute);

struct Comparison {
  double worst_row = 0.0;
  double worst_lse = 0.0;
  std::optional<std::string> failure;  ///< the first row that breaks the tolerance
};

/// Compares every row, over its heads together, with the oracle's.
///
/// The error of a row is |difference| / max(|oracle|, 0.01 |v|), where |v| is what the row's norm would be if all its
/// weight were on one typical key: a row whose values cancel to less than a hundredth of what went in is judged by what
/// went in, for that is what rounding acts on. A row that attends to nothing must be exactly 0 and -inf. NaN never
/// passes.
[[nodiscard]] Comparison compare(const AttentionCase& problem, const OutputBuffer& result,
                                 std::span<const attention::OracleRow> oracle, const Tolerance& tolerance);

}  // namespace headrace::test
