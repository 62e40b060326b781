// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "headrace/model.h"
#include "headrace/view.h"

namespace headrace::layer {

/// Pair i of a rope vector turns by position * inverse[i]; its cosine and sine are multiplied by `attention_factor`.
struct RopeFrequencies {
  std::vector<double> inverse;  ///< [dim / 2]
  double attention_factor = 1.0;
};

/// The frequencies of plain rope (theta^(-2i / dim)) or YaRN.
[[nodiscard]] RopeFrequencies rope_frequencies(const Rope& rope);

/// The rotations of a step's tokens, computed once and applied to queries, keys and the indexer's vectors.
class RopeTable {
 public:
  RopeTable(const Rope& rope, View<const std::int32_t> positions, int threads);

  /// Rotates x [T, heads, dim] in place: float32 or bfloat16, the last dimension contiguous. Computes in float32 and
  /// rounds once.
  /// @param interleave  pairs are (0, 1), (2, 3), ...; else (0, dim / 2), (1, dim / 2 + 1), ...
  /// @throws Error for another shape, dtype or stride
  void rotate(AnyView x, bool interleave, int threads) const;

 private:
  std::int64_t tokens_;
  std::int64_t pairs_;
  std::vector<float> cosine_;  ///< [T, pairs]
  std::vector<float> sine_;    ///< [T, pairs]
};

}  // namespace headrace::layer
