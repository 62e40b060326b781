// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "headrace/plan.h"

namespace headrace::bench {

/// FLOPs that the result of `attend` needs on the paths of a plan: their products with kv_b_proj (up-projection of the
/// keys that a path's rows see, or absorption and value projection), and scores and values of the selected pairs of row
/// and key. What a path computes beyond that (hidden pairs of a mask, keys of a union that a row did not select,
/// padding, keys up-projected twice) is not needed, and not counted.
/// @param count  distinct keys that each query token selects, all causal; empty: every causal key
[[nodiscard]] double needed_flops(const Plan& plan, std::span<const std::int32_t> count);

/// Of measured times.
struct Quartiles {
  double low = 0.0;
  double median = 0.0;
  double high = 0.0;

  /// Those of two steps that run one after the other.
  friend Quartiles operator+(const Quartiles& a, const Quartiles& b) noexcept {
    return {a.low + b.low, a.median + b.median, a.high + b.high};
  }
};

/// @param values  at least one, in any order
[[nodiscard]] Quartiles quartiles_of(std::vector<double> values);

/// The quotient of two medians, as text; with "within noise" where the ranges between the quartiles meet.
[[nodiscard]] std::string ratio_text(const Quartiles& a, const Quartiles& b);

/// "408.1 TFLOP/s" where FLOPs were counted, "1851.9 GB/s" where bytes were, else "-".
[[nodiscard]] std::string rate_text(double bytes, double flops, double microseconds);

}  // namespace headrace::bench
