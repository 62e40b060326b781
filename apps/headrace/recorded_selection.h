// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headrace/layer.h"
#include "headrace/recording.h"
#include "options.h"
#include "stages.h"

namespace headrace::app {

/// A recorded layer of that number; nothing where there is none.
[[nodiscard]] const RecordedLayer* find_layer(const std::vector<RecordedLayer>& recording, std::int64_t layer);

/// @throws Error naming the layer for hidden states of another width than the model's
void require_width(const RecordedLayer& recorded, const ModelConfig& config);

/// A recorded layer's hidden states in the compute dtype. @throws Error as require_width() does
[[nodiscard]] Tensor hidden_states(const RecordedLayer& recorded, const ModelConfig& config, DType compute);

/// What our own indexer selects over a recorded layer's hidden states, for every row, covered or not.
struct OwnSelection {
  SelectionBuffer buffer;
  std::vector<bool> agrees;  ///< per row: the same positions were recorded
  double match = 0.0;        ///< with what was recorded
  std::int64_t ties = 0;
};

/// @param stages    of a layer that scores
/// @param recorded  the same layer, with its recorded selection
[[nodiscard]] OwnSelection select_and_match(Stages& stages, const RecordedLayer& recorded, const Options& options);

}  // namespace headrace::app
