// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "headrace/export.h"
#include "headrace/model.h"
#include "headrace/tensor.h"

namespace headrace {

/// What another implementation computed for one layer.
struct RecordedLayer {
  std::int64_t layer = 0;
  Tensor hidden_states;  ///< [S, hidden] float32
  Tensor output;         ///< [S, hidden] float32
  Tensor topk_indices;   ///< [S, any width] int32, read as a Selection is; empty where none was recorded
};

/// Reads a recording.safetensors: tensors layers.{i}.hidden_states, .output and .topk_indices. In order of layer.
/// @throws Error for a damaged file, a layer without its tensors, or shapes that do not agree
[[nodiscard]] HEADRACE_EXPORT std::vector<RecordedLayer> load_recording(const std::filesystem::path& path);

/// Whose reading of the configuration a recording was made under, as its metadata says; nothing where it does not say.
/// It is the text "engines" or "transformers" under the key "reading" of the file's `__metadata__`.
/// @throws Error for a damaged file, or another text
[[nodiscard]] HEADRACE_EXPORT std::optional<Reading> recorded_reading(const std::filesystem::path& path);

}  // namespace headrace
