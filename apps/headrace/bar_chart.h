// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace headrace::app {

struct Bar {
  std::string label;
  double value = 0.0;
  std::string text;  ///< written at its end
};

/// For before the bars are known, which may take minutes; the file is left as it is.
/// @throws Error when it cannot be written
void expect_writable(const std::filesystem::path& file);

/// Writes horizontal bars, the longest across the whole width, as an SVG that reads on light and dark backgrounds.
/// @throws Error when the file cannot be written
void write_bar_chart(const std::filesystem::path& file, const std::string& title, const std::vector<Bar>& bars);

}  // namespace headrace::app
