// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "geometry/config_reader.h"
#include "headrace/model.h"

namespace headrace {

/// Reads rope in either spelling, `rope_parameters` or `rope_scaling`: one object with the type, `rope_theta` and
/// YaRN's fields. A `rope_theta` beside it counts where the object has none; without an object rope is plain.
/// @param dim  qk_rope_head_dim; with 0 no theta is needed
/// @param max_positions  max_position_embeddings
/// @throws Error for a rope type other than "default" and "yarn", or a field that is missing or impossible
[[nodiscard]] Rope parse_rope(const ConfigReader& reader, std::int64_t dim, std::int64_t max_positions);

/// 1/sqrt(qk_head_dim), times the square of YaRN's mscale where mscale_all_dim is set.
[[nodiscard]] double softmax_scale(std::int64_t qk_head_dim, const Rope& rope);

}  // namespace headrace
