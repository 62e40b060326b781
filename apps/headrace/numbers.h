// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::app {

/// A whole number in [least, most], every character of it digits. @throws Error naming `argument`
[[nodiscard]] std::int64_t parse_integer(std::string_view argument, std::string_view text, std::int64_t least,
                                         std::int64_t most);

/// A decimal number that float32 holds as finite and > 0: "0.25", "1e-3". @throws Error naming `argument`
[[nodiscard]] float parse_scale(std::string_view argument, std::string_view text);

/// Bytes: "4096", "64KiB", "64MiB", "2GiB", "1TiB". @throws Error naming `argument`
[[nodiscard]] std::int64_t parse_bytes(std::string_view argument, std::string_view text);

/// "512 B", "64.0 MiB".
[[nodiscard]] std::string format_bytes(std::int64_t bytes);

/// "1 step", "2 steps".
[[nodiscard]] std::string counted(std::int64_t count, std::string_view noun);

/// Three significant digits and a unit: "12.3 ms", "4.56 s".
[[nodiscard]] std::string format_ms(double milliseconds);

}  // namespace headrace::app
