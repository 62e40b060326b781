// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
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
/// A stream that fails keeps its error for the end of main().
void print_json(const Json& document);

/// "headrace: TEXT" on stderr: one line, or on a terminal lines of at most 80 columns, indented by two after the first.
/// Does not fail: where stderr is closed or full there is nobody left to tell.
void note(std::string_view text) noexcept;

/// How many columns text for people may take: those of the terminal that stdout is (60 to 120), else 80.
[[nodiscard]] std::size_t output_width() noexcept;

/// "a; b; c"
[[nodiscard]] std::string join(const std::vector<std::string>& parts);

}  // namespace headrace::app
