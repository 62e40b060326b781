// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace headrace::app {
namespace {

using Cells = std::vector<std::string>;

constexpr std::size_t kGap = 2;
constexpr std::size_t kLeastText = 24;  // a column of text is not cut narrower

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  lines.emplace_back(text);
  return lines;
}

std::size_t width_of(std::string_view text) {
  std::size_t width = 0;
  for (const std::string& line : lines_of(text)) {
    width = std::max(width, line.size());
  }
  return width;
}

/// The columns of one table, by number, with the widths of all.
struct Layout {
  std::vector<std::size_t> columns;
  std::vector<std::size_t> widths;
};

/// A row in as many lines as its highest cell. @param at_bottom  lower cells end where the highest does
std::string render(const std::vector<Table::Column>& columns, const Layout& layout, const Cells& cells,
                   bool at_bottom) {
  std::vector<std::vector<std::string>> lines;
  std::size_t height = 0;
  for (const std::size_t c : layout.columns) {
    lines.push_back(columns[c].align == Table::Align::text && !at_bottom ? wrap(cells[c], layout.widths[c])
                                                                         : lines_of(cells[c]));
    height = std::max(height, lines.back().size());
  }
  std::string text;
  for (std::size_t y = 0; y < height; ++y) {
    std::string line;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::size_t c = layout.columns[i];
      const std::size_t above = at_bottom ? height - lines[i].size() : 0;
      const std::string part = y >= above && y - above < lines[i].size() ? lines[i][y - above] : "";
      line.append(i == 0 ? 0 : kGap, ' ');
      line += columns[c].align == Table::Align::right ? fmt::format("{:>{}}", part, layout.widths[c])
                                                      : fmt::format("{:<{}}", part, layout.widths[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line;
    text += '\n';
  }
  return text;
}

/// The columns that come next to the first within a width, from `next` on; at least one where any is left.
std::vector<std::size_t> fitting(const std::vector<std::size_t>& widths, std::size_t& next, std::size_t width) {
  std::vector<std::size_t> columns{0};
  std::size_t used = widths[0];
  while (next < widths.size() && (columns.size() == 1 || used + kGap + widths[next] <= width)) {
    used += kGap + widths[next];
    columns.push_back(next);
    ++next;
  }
  return columns;
}

/// All columns, as wide as their owner stated.
Layout stated(const std::vector<Table::Column>& columns) {
  Layout layout;
  for (const Table::Column& column : columns) {
    layout.columns.push_back(layout.columns.size());
    layout.widths.push_back(std::max(column.width, width_of(column.title)));
  }
  return layout;
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  if (cells.size() > columns_.size()) {
    throw std::logic_error("a table row has more cells than the table has columns");
  }
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::vector<std::string> Table::all_titles() const {
  std::vector<std::string> titles;
  titles.reserve(columns_.size());
  for (const Column& column : columns_) {
    titles.push_back(column.title);
  }
  return titles;
}

std::string Table::to_string(std::size_t width) const {
  std::vector<std::size_t> widths;
  widths.reserve(columns_.size());
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t most = std::max(columns_[c].width, width_of(columns_[c].title));
    for (const Cells& row : rows_) {
      most = std::max(most, width_of(row[c]));
    }
    widths.push_back(most);
  }
  if (columns_.back().align == Align::text) {
    const std::size_t others = std::accumulate(widths.begin(), widths.end() - 1, kGap * (widths.size() - 1));
    widths.back() = std::min(widths.back(), std::max(kLeastText, width - std::min(width, others)));
  }
  std::string text;
  std::size_t next = 1;
  do {
    const Layout layout{fitting(widths, next, width), widths};
    if (!text.empty()) {
      text += '\n';
    }
    text += render(columns_, layout, all_titles(), true);
    for (const Cells& row : rows_) {
      text += render(columns_, layout, row, false);
    }
  } while (next < widths.size());
  return text;
}

std::string Table::titles() const { return render(columns_, stated(columns_), all_titles(), true); }

std::string Table::line(std::vector<std::string> cells) const {
  cells.resize(columns_.size());
  return render(columns_, stated(columns_), cells, false);
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

std::string wrapped(std::string_view text, std::size_t width, std::size_t indent) {
  std::string result;
  for (const std::string& line : wrap(text, width - std::min(indent, width / 2))) {
    result += result.empty() ? line : std::string(indent, ' ') + line;
    result += '\n';
  }
  return result;
}

}  // namespace headrace::app
