// SPDX-License-Identifier: Apache-2.0
#include "numbers.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

#include "headrace/error.h"

namespace headrace::app {
namespace {

constexpr std::array<std::string_view, 5> kByteUnits{"B", "KiB", "MiB", "GiB", "TiB"};

/// "", "B", "K", "KiB", "KB" and so on to T.
std::optional<std::int64_t> bytes_of_unit(std::string_view text) {
  std::string unit(text);
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  if (unit.empty() || unit == "B") {
    return 1;
  }
  const std::size_t power = std::string_view("BKMGT").find(unit.front());
  const std::string_view rest = std::string_view(unit).substr(1);
  if (power == std::string_view::npos || power == 0) {
    return std::nullopt;
  }
  if (rest.empty() || rest == "IB") {
    return std::int64_t{1} << (10 * power);
  }
  if (rest != "B") {
    return std::nullopt;
  }
  std::int64_t bytes = 1;
  for (std::size_t i = 0; i < power; ++i) {
    bytes *= 1000;
  }
  return bytes;
}

}  // namespace

std::int64_t parse_integer(std::string_view argument, std::string_view text, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, value);
  if (problem != std::errc() || stop != end || value < least || value > most) {
    throw Error(std::string(argument), fmt::format("a whole number in [{}, {}]", least, most),
                fmt::format("\"{}\"", text));
  }
  return value;
}

std::optional<std::int64_t> read_count(std::string_view text, std::int64_t most) {
  std::int64_t factor = 1;
  if (text.ends_with('k') || text.ends_with('K')) {
    factor = 1 << 10;
  } else if (text.ends_with('m') || text.ends_with('M')) {
    factor = 1 << 20;
  }
  text.remove_suffix(factor == 1 ? 0 : 1);
  if (text.empty() || text.front() == '-') {
    return std::nullopt;
  }
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, value);
  if (problem != std::errc() || stop != end || value > most / factor) {
    return std::nullopt;
  }
  return value * factor;
}

float parse_scale(std::string_view argument, std::string_view text) {
  float value = 0.0F;
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, value);
  if (problem != std::errc() || stop != end || !std::isfinite(value) || value <= 0.0F) {
    throw Error(std::string(argument), "a number that float32 holds as finite and > 0, such as 0.25 or 1e-3",
                fmt::format("\"{}\"", text));
  }
  return value;
}

std::int64_t parse_bytes(std::string_view argument, std::string_view text) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, value);
  const std::optional<std::int64_t> unit = bytes_of_unit(std::string_view(stop, static_cast<std::size_t>(end - stop)));
  if (problem != std::errc() || value < 0 || !unit || value > std::numeric_limits<std::int64_t>::max() / *unit) {
    throw Error(std::string(argument),
                "bytes below 2^63: a whole number, alone or with KiB, MiB, GiB, TiB (or K, M, G, T) or KB, MB, GB, TB",
                fmt::format("\"{}\"", text));
  }
  return value * *unit;
}

std::string format_bytes(std::int64_t bytes) {
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kByteUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kByteUnits[unit]);
}

std::string list_numbers(const std::vector<std::int64_t>& numbers) {
  constexpr std::size_t kLeastRun = 3;  // fewer are listed one by one
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    const std::int64_t step = end < numbers.size() ? numbers[end] - numbers[i] : 1;
    while (end < numbers.size() && numbers[end] - numbers[end - 1] == step) {
      ++end;
    }
    if (end - i < kLeastRun) {
      end = i + 1;
      parts.push_back(std::to_string(numbers[i]));
    } else {
      parts.push_back(step == 1 ? fmt::format("{} to {}", numbers[i], numbers[end - 1])
                                : fmt::format("{} to {} in steps of {}", numbers[i], numbers[end - 1], step));
    }
    i = end;
  }
  if (parts.empty()) {
    return "none";
  }
  std::string text = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    text += (i + 1 == parts.size() ? " and " : ", ") + parts[i];
  }
  return text;
}

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string format_digits(double value) {
  const int decimals = value >= 100.0 ? 0 : value >= 10.0 ? 1 : value >= 1.0 ? 2 : 3;
  return fmt::format("{:.{}f}", value, decimals);
}

std::string format_ms(double milliseconds) {
  const bool seconds = milliseconds >= 1000.0;
  return fmt::format("{} {}", format_digits(seconds ? milliseconds / 1000.0 : milliseconds), seconds ? "s" : "ms");
}

}  // namespace headrace::app
