// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "headrace/view.h"

namespace headrace::app {

/// Adds up what separates rows from what they should be.
class OutputErrors {
 public:
  /// @param actual    [n, N] float32 or bfloat16
  /// @param expected  [n, N]
  /// @param counts    empty, or per row of the prompt whether it is to be compared
  /// @param first     the prompt's row that row 0 is
  void add(const ConstAnyView& actual, const View<const float>& expected, const std::vector<bool>& counts = {},
           std::int64_t first = 0);

  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  /// ||difference|| / ||expected||, over all rows.
  [[nodiscard]] double relative() const noexcept;
  /// The same of the worst row.
  [[nodiscard]] double max_row() const noexcept { return max_row_; }

 private:
  std::int64_t rows_ = 0;
  double difference_ = 0.0;
  double expected_ = 0.0;
  double max_row_ = 0.0;
};

/// Element i of a contiguous run of float32 or bfloat16.
[[nodiscard]] float element(const ConstAnyView& view, std::int64_t offset) noexcept;

}  // namespace headrace::app
