// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace headrace::io {

using Json = nlohmann::json;

/// Parses one JSON document. Stricter than JSON demands, for files that nobody vouches for: a key may occur only once
/// in its object, and values nest at most 64 deep.
/// @param name  how errors call the document
/// @throws Error for anything else
[[nodiscard]] Json parse_json(std::string_view text, std::string_view name);

/// A value as an error message shows it: a short one as it is written, otherwise its kind.
[[nodiscard]] std::string describe(const Json& value);

}  // namespace headrace::io
