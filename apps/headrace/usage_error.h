// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace headrace::app {

/// The names of the commands of a parser, in the order they were added.
[[nodiscard]] std::vector<std::string> command_names(const CLI::App& app);

/// Throws what CLI11 found wrong, as Headrace tells it: what it was, what it was probably meant to be, and which --help
/// to read.
[[noreturn]] void throw_usage_error(const CLI::App& app, const CLI::ParseError& problem);

/// Throws where an option or flag was given twice, before the command's name and after it included.
void refuse_repeated(const CLI::App& app);

}  // namespace headrace::app
