// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>

namespace headrace::app {

void Table::add(std::vector<std::string> cells) {
  if (cells.size() > columns_.size()) {
    throw std::logic_error("a table row has more cells than the table has columns");
  }
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::vector<std::string> wrap(std::string_view text, std::size_t width) {
  std::vector<std::string> lines;
  while (text.size() > width) {
    std::size_t cut = text.rfind(' ', width);
    if (cut == std::string_view::npos) {
      cut = text.find(' ');
    }
    if (cut == std::string_view::npos) {
      break;
    }
    lines.emplace_back(text.substr(0, cut));
    text.remove_prefix(cut + 1);
  }
  lines.emplace_back(text);
  return lines;
}

std::string Table::to_string() const {
  std::vector<std::size_t> widths;
  widths.reserve(columns_.size());
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = columns_[c].title.size();
    for (const auto& row : rows_) {
      width = std::max(width, row[c].size());
    }
    widths.push_back(width);
  }

  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string_view gap = c == 0 ? "" : "  ";
      line += columns_[c].align == Align::left ? fmt::format("{}{:<{}}", gap, cell_of(c), widths[c])
                                               : fmt::format("{}{:>{}}", gap, cell_of(c), widths[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line;
    text += '\n';
  };
  add_line([&](std::size_t c) -> const std::string& { return columns_[c].title; });
  for (const auto& row : rows_) {
    add_line([&](std::size_t c) -> const std::string& { return row[c]; });
  }
  return text;
}

}  // namespace headrace::app
