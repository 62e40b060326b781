// SPDX-License-Identifier: Apache-2.0
#include "output_errors.h"

#include <algorithm>

#include "check.h"

namespace headrace::app {

float element(const ConstAnyView& view, std::int64_t offset) noexcept {
  return view.dtype() == DType::bfloat16 ? static_cast<float>(static_cast<const bfloat16*>(view.data())[offset])
                                         : static_cast<const float*>(view.data())[offset];
}

void OutputErrors::add(const ConstAnyView& actual, const View<const float>& expected, const std::vector<bool>& counts,
                       std::int64_t first) {
  for (std::int64_t row = 0; row < expected.dim(0); ++row) {
    if (!counts.empty() && !counts[static_cast<std::size_t>(first + row)]) {
      continue;
    }
    ++rows_;
    double difference = 0.0;
    double reference = 0.0;
    for (std::int64_t i = 0; i < expected.dim(1); ++i) {
      const double want = static_cast<double>(expected(row, i));
      const double delta = static_cast<double>(element(actual, row * actual.stride(0) + i * actual.stride(1))) - want;
      difference += delta * delta;
      reference += want * want;
    }
    difference_ += difference;
    expected_ += reference;
    max_row_ = std::max(max_row_, relative_error(difference, reference));
  }
}

double OutputErrors::relative() const noexcept { return relative_error(difference_, expected_); }

}  // namespace headrace::app
