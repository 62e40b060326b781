// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "geometry/config_reader.h"
#include "headrace/model.h"

namespace headrace {

/// What each layer is: `layer_types`, or where it is absent the one kind that all layers of the architecture have. A
/// hybrid without it has `linear_attn_config.kda_layers` (engines), else sparse attention in every fourth layer.
/// @throws Error for a kind that the architecture does not have, or layer_types that contradict kda_layers
[[nodiscard]] std::vector<LayerKind> parse_layer_kinds(const ConfigReader& reader, std::int64_t num_layers);

/// Which layers take the selection of an earlier one, by what is there of
///   indexer_types        "full" or "shared" for each layer
///   index_topk_pattern   a string of F and S. In a list engines know the letters, transformers the words
///   index_topk_freq f, index_skip_topk_offset o (2)   layer i scores iff max(i - o + 1, 0) is a multiple of f
/// Without any every layer scores. Engines read them for every architecture with an indexer, transformers for some.
/// @throws Error also where two contradict each other, or a layer that shares has no layer before it that scores
[[nodiscard]] std::vector<bool> parse_sharing(const ConfigReader& reader, const std::vector<LayerKind>& kinds);

}  // namespace headrace
