// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "headrace/error.h"
#include "headrace/geometry.h"

namespace headrace::app {

/// JSON that keeps its fields in the order they were written.
using Json = nlohmann::ordered_json;

/// The number, or null when it is not finite (JSON knows no infinity).
[[nodiscard]] Json number(double value);
[[nodiscard]] Json to_json(const Geometry& geometry);
/// {"schema": 1, "error": {"argument", "expected", "actual"}}
[[nodiscard]] Json to_json(const Error& error);
/// {"schema": 1}, to which a command adds its fields.
[[nodiscard]] Json new_document();

/// Writes to stdout, with a newline. Text that is not UTF-8 (a file name) is written with replacement characters.
void print_json(const Json& document);

/// "a; b; c"
[[nodiscard]] std::string join(const std::vector<std::string>& parts);

}  // namespace headrace::app
