// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "geometry/config_reader.h"
#include "headrace/model.h"

namespace headrace {

/// Whether some reader takes this field of a rope object for YaRN's.
[[nodiscard]] bool is_yarn_field(std::string_view key);

/// YaRN's fields. The two readings differ in what scales sines and cosines, and in `truncate`; what engines make of
/// them is written as an attention factor.
/// @param rope  the rope object
/// @param max_positions  what original_max_position_embeddings is where it is absent
/// @throws Error for a field that is missing or impossible
[[nodiscard]] Yarn parse_yarn(const ConfigReader& reader, const ConfigFields& rope, std::int64_t max_positions);

}  // namespace headrace
