// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "headrace/export.h"
#include "headrace/tensor.h"

namespace headrace {

/// What another implementation computed for one layer.
struct RecordedLayer {
  std::int64_t layer = 0;
  Tensor hidden_states;  ///< [S, hidden] float32
  Tensor output;         ///< [S, hidden] float32
  Tensor topk_indices;   ///< [S, width] int32, -1 = unused; empty on layers that share a selection
};

/// Reads a recording.safetensors: tensors layers.{i}.hidden_states, .output and .topk_indices. In order of layer.
/// @throws Error for a damaged file, a layer without its tensors, or shapes that do not agree
[[nodiscard]] HEADRACE_EXPORT std::vector<RecordedLayer> load_recording(const std::filesystem::path& path);

}  // namespace headrace
