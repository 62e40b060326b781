// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::app {

/// A whole number in [least, most], every character of it digits. @throws Error naming `argument`
[[nodiscard]] std::int64_t parse_integer(std::string_view argument, std::string_view text, std::int64_t least,
                                         std::int64_t most);

/// A decimal number that float32 holds as finite and > 0: "0.25", "1e-3". @throws Error naming `argument`
[[nodiscard]] float parse_scale(std::string_view argument, std::string_view text);

/// Digits, then perhaps k (1024) or m (1024 * 1024), in capitals or not: how tokens and requests are counted. Nothing
/// for any other text, or a number above `most`.
[[nodiscard]] std::optional<std::int64_t> read_count(std::string_view text, std::int64_t most);

/// Bytes, with the units that GNU's tools know, in capitals or not: K, M, G and T as well as KiB, MiB, GiB and TiB are
/// powers of 1024; KB, MB, GB and TB are powers of 1000; B, or nothing, is one. @throws Error naming `argument`
[[nodiscard]] std::int64_t parse_bytes(std::string_view argument, std::string_view text);

/// "512 B", "64.0 MiB".
[[nodiscard]] std::string format_bytes(std::int64_t bytes);

/// Ascending numbers, evenly spaced ones by their step: "0 to 60", "3 to 43 in steps of 4", "0, 1 and 5 to 9"; "none".
[[nodiscard]] std::string list_numbers(const std::vector<std::int64_t>& numbers);

/// "1 step", "2 steps".
[[nodiscard]] std::string counted(std::int64_t count, std::string_view noun);

/// Three significant digits, or all before the point where there are more: "0.123", "12.3", "4560".
[[nodiscard]] std::string format_digits(double value);

/// Three significant digits and a unit: "12.3 ms", "4.56 s".
[[nodiscard]] std::string format_ms(double milliseconds);

}  // namespace headrace::app
