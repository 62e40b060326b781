// SPDX-License-Identifier: Apache-2.0
#include "suggestion.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>

namespace headrace::app {
namespace {

constexpr std::size_t kLeastPrefix = 3;     // shorter beginnings say too little
constexpr std::size_t kLettersAnError = 3;  // one error is forgiven for as many letters
constexpr std::size_t kLongestText = 64;    // nothing longer is a name with errors in it

/// Its letters and digits, without capitals: what is left when hyphens, dots and underscores are forgotten.
std::string plain(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c >= 'A' && c <= 'Z') {
      result += static_cast<char>(c - 'A' + 'a');
    } else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      result += c;
    }
  }
  return result;
}

/// Letters to add, drop, replace, or exchange with their neighbour, until one text is the other.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> least(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        least[i][j] = i + j;
        continue;
      }
      const std::size_t replaced = least[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      least[i][j] = std::min({replaced, least[i - 1][j] + 1, least[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        least[i][j] = std::min(least[i][j], least[i - 2][j - 2] + 1);
      }
    }
  }
  return least[a.size()][b.size()];
}

bool begins_with(std::string_view text, std::string_view start) {
  return start.size() >= kLeastPrefix && text.starts_with(start);
}

}  // namespace

std::string nearest_name(std::string_view text, const std::vector<std::string>& names) {
  const std::string wanted = text.size() > kLongestText ? "" : plain(text);
  if (wanted.empty()) {
    return "";
  }
  const auto first = [&](const auto& fits) {
    const auto found =
        std::find_if(names.begin(), names.end(), [&](const std::string& name) { return fits(plain(name)); });
    return found == names.end() ? std::string() : *found;
  };
  std::string nearest = first([&](const std::string& name) { return name == wanted; });
  if (nearest.empty()) {
    nearest = first([&](const std::string& name) { return begins_with(name, wanted); });
  }
  const std::size_t most = std::max<std::size_t>(1, wanted.size() / kLettersAnError);
  for (std::size_t errors = 1; nearest.empty() && errors <= most; ++errors) {
    nearest = first([&](const std::string& name) { return distance(wanted, name) == errors; });
  }
  if (nearest.empty()) {
    nearest = first([&](const std::string& name) { return begins_with(wanted, name); });
  }
  return nearest;
}

std::string did_you_mean(std::string_view text, const std::vector<std::string>& names) {
  const std::string nearest = nearest_name(text, names);
  return nearest.empty() ? std::string() : fmt::format(" (did you mean \"{}\"?)", nearest);
}

}  // namespace headrace::app
