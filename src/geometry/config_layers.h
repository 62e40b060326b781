// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "geometry/architecture.h"
#include "geometry/config_fields.h"
#include "headrace/model.h"

namespace headrace {

/// What each layer is: `layer_types`, or where it is absent the one kind that all layers of the architecture have.
/// @throws Error for a kind that the architecture does not have; hybrid architectures must have the field
[[nodiscard]] std::vector<LayerKind> parse_layer_kinds(const Architecture& architecture, const ConfigFields& fields,
                                                       std::int64_t num_layers);

/// Which layers take the selection of an earlier one. In order of precedence: `indexer_types`; `index_topk_pattern`,
/// a string of F and S or a list; `index_topk_freq` f and `index_skip_topk_offset` o, by which layer i scores iff
/// max(i - o + 1, 0) is a multiple of f (by default every layer does).
/// @throws Error also when a layer that shares has no layer before it that scores
[[nodiscard]] std::vector<bool> parse_sharing(const Architecture& architecture, const ConfigFields& fields,
                                              const std::vector<LayerKind>& kinds);

}  // namespace headrace
