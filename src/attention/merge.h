// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

namespace headrace::attention {

/// What has been seen so far of one row of one head: the running maximum of its scaled scores and the sum of
/// exp(score - max). It starts at the lowest finite number: no finite score is below it, and no difference of two
/// maxima is ever NaN. The sum is 0 only for a row that has attended to nothing.
struct RowState {
  static constexpr float kStart = std::numeric_limits<float>::lowest();
  float max = kStart;
  float sum = 0.0F;
};

/// Merges a tile of up to 64 keys into a row: on return scores[i] = exp(scale * scores[i] - state.max) where bit i of
/// `mask` is set and 0 elsewhere, and the state includes them. A selected score that is not finite makes the row NaN.
/// @return the factor by which everything accumulated for the row before must be multiplied
float merge_tile(std::int64_t keys, float* scores, float scale, std::uint64_t mask, RowState& state);

/// What a row's accumulated values are multiplied by at the end: 1 / sum, and the sink's share applied once,
/// out *= 1 / (1 + exp(sink - LSE)). 0 for a row that attended to nothing.
/// @param sink  null when the layer has none
/// @param lse   out: natural log of the sum of exp(score), -inf for an empty row; the sink is not included
[[nodiscard]] float finish_row(const RowState& state, const float* sink, float& lse);

/// x[i] *= factor
void scale_values(std::int64_t n, float* x, float factor);

}  // namespace headrace::attention
