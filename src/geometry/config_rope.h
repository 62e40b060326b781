// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "geometry/architecture.h"
#include "geometry/config_fields.h"
#include "headrace/model.h"

namespace headrace {

/// Reads rope in either spelling: `rope_parameters` (with rope_theta inside), or `rope_scaling` beside `rope_theta`.
/// @param dim  qk_rope_head_dim; with 0 the fields may be absent
/// @throws Error for a rope type other than "default" and "yarn", or a field that is missing or impossible
[[nodiscard]] Rope parse_rope(const Architecture& architecture, const ConfigFields& fields, std::int64_t dim);

/// 1/sqrt(qk_head_dim), times the square of YaRN's mscale where mscale_all_dim is set.
[[nodiscard]] double softmax_scale(std::int64_t qk_head_dim, const Rope& rope);

}  // namespace headrace
