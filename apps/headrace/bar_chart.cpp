// SPDX-License-Identifier: Apache-2.0
#include "bar_chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <system_error>

#include "headrace/error.h"

namespace headrace::app {
namespace {

constexpr int kWidth = 860;
constexpr int kLabelWidth = 330;
constexpr int kTextWidth = 170;
constexpr int kTop = 48;
constexpr int kPitch = 30;
constexpr int kBarHeight = 20;

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

[[noreturn]] void refuse(const std::filesystem::path& file) {
  std::error_code ignored;
  std::string actual = "one that cannot";
  if (std::filesystem::is_directory(file, ignored)) {
    actual = "a folder";
  } else if (const auto folder = file.parent_path(); !folder.empty() && !std::filesystem::exists(folder, ignored)) {
    actual = fmt::format("one in \"{}\", and there is no such folder", folder.string());
  }
  throw Error(file.string(), "a file that can be written", actual);
}

}  // namespace

void expect_writable(const std::filesystem::path& file) {
  const bool existed = std::filesystem::exists(file);
  if (!std::ofstream(file, std::ios::app)) {
    refuse(file);
  }
  if (!existed) {
    std::filesystem::remove(file);
  }
}

void write_bar_chart(const std::filesystem::path& file, const std::string& title, const std::vector<Bar>& bars) {
  double largest = 0.0;
  for (const Bar& bar : bars) {
    largest = std::max(largest, bar.value);
  }
  const int height = kTop + kPitch * static_cast<int>(bars.size()) + 12;
  std::ofstream out(file);
  out << fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"system-ui, sans-serif\" "
      "font-size=\"13\">\n<style>text {{ fill: #24292f }} rect {{ fill: #2f6fb5 }} rect.yardstick {{ fill: #8c959f }}\n"
      "@media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3 }} rect {{ fill: #58a6ff }} }}</style>\n"
      "<text x=\"12\" y=\"26\" font-size=\"16\" font-weight=\"600\">{}</text>\n",
      kWidth, height, escaped(title));
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const Bar& bar = bars[i];
    const int y = kTop + kPitch * static_cast<int>(i);
    const double length = largest > 0.0 ? bar.value / largest * (kWidth - kLabelWidth - kTextWidth) : 0.0;
    out << fmt::format(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n<rect{} x=\"{}\" y=\"{}\" width=\"{:.1f}\" "
        "height=\"{}\" rx=\"2\"/>\n<text x=\"{:.1f}\" y=\"{}\">{}</text>\n",
        kLabelWidth - 10, y + 15, escaped(bar.label), i == 0 ? " class=\"yardstick\"" : "", kLabelWidth, y, length,
        kBarHeight, kLabelWidth + length + 8, y + 15, escaped(bar.text));
  }
  out << "</svg>\n";
  out.flush();
  if (!out) {
    refuse(file);
  }
}

}  // namespace headrace::app
