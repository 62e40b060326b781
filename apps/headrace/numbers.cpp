// SPDX-License-Identifier: Apache-2.0
#include "numbers.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

#include "headrace/error.h"

namespace headrace::app {
namespace {

constexpr std::array<std::string_view, 5> kByteUnits{"B", "KiB", "MiB", "GiB", "TiB"};

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
  const std::string_view unit = stop == end ? kByteUnits[0] : text.substr(static_cast<std::size_t>(stop - text.data()));
  if (problem == std::errc() && value >= 0) {
    for (std::size_t i = 0; i < kByteUnits.size(); ++i) {
      const std::int64_t factor = std::int64_t{1} << (10 * i);
      if (unit == kByteUnits[i] && value <= std::numeric_limits<std::int64_t>::max() / factor) {
        return value * factor;
      }
    }
  }
  throw Error(std::string(argument), "bytes below 2^63, such as 1048576, 64MiB or 2GiB", fmt::format("\"{}\"", text));
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

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string format_ms(double milliseconds) {
  const bool seconds = milliseconds >= 1000.0;
  const double value = seconds ? milliseconds / 1000.0 : milliseconds;
  const int decimals = value >= 100.0 ? 0 : value >= 10.0 ? 1 : value >= 1.0 ? 2 : 3;
  return fmt::format("{:.{}f} {}", value, decimals, seconds ? "s" : "ms");
}

}  // namespace headrace::app
