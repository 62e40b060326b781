// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "geometry/config_reader.h"
#include "headrace/model.h"

namespace headrace {

/// The indexer of the architecture's sparse layers; nothing where it has none.
/// @param rope_dim  qk_rope_head_dim
/// @throws Error for a field that is missing or impossible
[[nodiscard]] std::optional<IndexerGeometry> parse_indexer(const ConfigReader& reader, std::int64_t rope_dim);

}  // namespace headrace
