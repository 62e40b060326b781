// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "headrace/view.h"
#include "selection/candidates.h"

namespace headrace::selection {

/// The key of a complete pool: per channel the mean of its tokens' keys under softmax weights of gate + bias, the bias
/// learned for each offset in the pool. In float32 from the stored values, rounded once.
/// @param rows         cache rows of the pool's tokens in order, each key [dim] | gate [dim]
/// @param offset_bias  [rows.size(), dim]
/// @param out          [dim]; may be the key of one of the rows
template <class T>
void pool_keys(std::span<const T* const> rows, View<const float> offset_bias, std::int64_t dim, T* out) {
  const auto logit = [&](std::size_t offset, std::int64_t d) {
    return static_cast<float>(rows[offset][dim + d]) + offset_bias(offset, d);
  };
  for (std::int64_t d = 0; d < dim; ++d) {
    float max = -std::numeric_limits<float>::infinity();
    for (std::size_t o = 0; o < rows.size(); ++o) {
      max = std::fmax(max, logit(o, d));
    }
    float total = 0.0F;
    float weighted = 0.0F;
    for (std::size_t o = 0; o < rows.size(); ++o) {
      const float weight = std::exp(logit(o, d) - max);
      total += weight;
      weighted += weight * static_cast<float>(rows[o][d]);
    }
    out[d] = static_cast<T>(weighted / total);
  }
}

/// Writes one row of a selection: the positions of the chosen candidates, then the row's incomplete pool where it is
/// always selected, then -1.
/// @param chosen  candidates in ascending order
/// @param row     the row of the index, [width]
/// @returns the number of positions
std::int64_t write_row(const Candidates& candidates, std::span<const std::int32_t> chosen, std::int64_t position,
                       View<std::int32_t> row);

}  // namespace headrace::selection
