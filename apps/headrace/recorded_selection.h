// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headrace/layer.h"
#include "headrace/recording.h"
#include "headrace/selection.h"
#include "options.h"
#include "selection_match.h"
#include "stages.h"

namespace headrace::app {

/// A recorded layer of that number; nothing where there is none.
[[nodiscard]] const RecordedLayer* find_layer(const std::vector<RecordedLayer>& recording, std::int64_t layer);

/// @throws Error naming the layer for hidden states of another width than the model's
void require_width(const RecordedLayer& recorded, const ModelConfig& config);

/// A recorded layer's hidden states in the compute dtype. @throws Error as require_width() does
[[nodiscard]] Tensor hidden_states(const RecordedLayer& recorded, const ModelConfig& config, DType compute);

/// Rows of a prompt that deserve a word.
struct NotedRows {
  std::int64_t rows = 0;
  std::optional<std::int64_t> first;

  void add(std::int64_t row);
};

/// A recorded selection as the contract reads it: of each row the keys that the row may attend to, ascending, each
/// once, then -1. So it is no wider than its widest row or the rule needs, however padded the recorded buffer was.
struct RecordedSelection {
  Tensor index;    ///< [S, width] int32
  NotedRows wide;  ///< rows that select more keys than the rule lets them

  [[nodiscard]] Selection selection() const { return {index.view_as<std::int32_t>(), {}}; }
};

/// @param topk_indices  [S, any width] int32, of row p the keys of the token at position p
[[nodiscard]] RecordedSelection read_selection(const Tensor& topk_indices, const SelectionRule& rule);

/// Per row whether two selections of the same prompt hold the same keys, in whatever order.
[[nodiscard]] std::vector<bool> rows_that_agree(const Tensor& one, const Tensor& other);

/// What our own indexer selects over a recorded layer's hidden states, for every row, covered or not.
struct OwnSelection {
  SelectionBuffer buffer;
  SelectionMatch match;  ///< with what was recorded
};

/// @param stages     of a layer that scores
/// @param recorded   the same layer
/// @param selection  what was recorded for it
[[nodiscard]] OwnSelection select_and_match(Stages& stages, const RecordedLayer& recorded,
                                            const RecordedSelection& selection, const Options& options);

}  // namespace headrace::app
