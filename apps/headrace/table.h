// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::app {

/// A table of text with aligned columns, two spaces apart, under their titles. Titles and cells may have several lines,
/// which newlines part; those of a title stand at the bottom.
class Table {
 public:
  static constexpr std::size_t kPlainWidth = 80;
  enum class Align {
    left,
    right,
    text,  ///< left, and its cells are cut at blanks to fit what the other columns leave: the last column's
  };
  struct Column {
    std::string title;
    Align align = Align::left;
    std::size_t width = 0;  ///< at least
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// Adds a row; cells that are missing at its end are empty. @throws std::logic_error for too many
  void add(std::vector<std::string> cells);
  /// Lines that end without blanks, of at most `width` characters (or what one column and the first take). Columns that
  /// do not fit stand in a second table below the first, after the first column again, and so on.
  [[nodiscard]] std::string to_string(std::size_t width = kPlainWidth) const;

  /// For rows that are shown as they come: the titles, and a row, in columns of the widths that were stated.
  [[nodiscard]] std::string titles() const;
  [[nodiscard]] std::string line(std::vector<std::string> cells) const;

 private:
  [[nodiscard]] std::vector<std::string> all_titles() const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Cuts a text at blanks into lines of at most `width` characters; a longer word has a line of its own.
[[nodiscard]] std::vector<std::string> wrap(std::string_view text, std::size_t width);

/// The same as one text with a newline at its end. Lines after the first begin with `indent` blanks, and every line has
/// `width - indent` characters of the text at most.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t width, std::size_t indent = 0);

}  // namespace headrace::app
