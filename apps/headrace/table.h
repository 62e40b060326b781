// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace::app {

/// A table of text with aligned columns, two spaces apart, under one line of titles.
class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// Adds a row; cells that are missing at its end are empty. @throws std::logic_error for too many
  void add(std::vector<std::string> cells);
  /// Lines that end without blanks.
  [[nodiscard]] std::string to_string() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Cuts a text at blanks into lines of at most `width` characters; a longer word has a line of its own.
[[nodiscard]] std::vector<std::string> wrap(std::string_view text, std::size_t width);

}  // namespace headrace::app
