// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <fmt/core.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <string>

#include "table.h"

namespace headrace::app {
namespace {

/// The columns of the terminal that a stream is, or 80.
std::size_t width_of_terminal(int descriptor) noexcept {
  constexpr std::size_t kLeast = 60;
  constexpr std::size_t kMost = 120;
  ::winsize size{};
  const bool known = isatty(descriptor) == 1 && ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? std::clamp<std::size_t>(size.ws_col, kLeast, kMost) : Table::kPlainWidth;
}

}  // namespace

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json to_json(const Geometry& geometry) {
  return {{"num_heads", geometry.num_heads},
          {"kv_lora_rank", geometry.kv_lora_rank},
          {"qk_nope_head_dim", geometry.qk_nope_head_dim},
          {"qk_rope_head_dim", geometry.qk_rope_head_dim},
          {"v_head_dim", geometry.v_head_dim}};
}

Json to_json(const Error& error) {
  Json document = new_document();
  document["error"] = {{"argument", error.argument()}, {"expected", error.expected()}, {"actual", error.actual()}};
  return document;
}

Json new_document() { return {{"schema", 1}}; }

void print_json(const Json& document) {
  const std::string text = document.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
  (void)std::fwrite(text.data(), 1, text.size(), stdout);
}

void note(std::string_view text) noexcept {
  constexpr std::string_view kName = "headrace: ";
  try {
    std::string line(kName);
    line += text;
    if (isatty(STDERR_FILENO) == 1) {
      line = wrapped(line, std::min(width_of_terminal(STDERR_FILENO), Table::kPlainWidth), 2);
    } else {
      line += '\n';
    }
    (void)std::fwrite(line.data(), 1, line.size(), stderr);
  } catch (const std::exception&) {  // no memory for a line of its own
    (void)std::fwrite(kName.data(), 1, kName.size(), stderr);
    (void)std::fwrite(text.data(), 1, text.size(), stderr);
    (void)std::fputc('\n', stderr);
  }
}

std::size_t output_width() noexcept { return width_of_terminal(STDOUT_FILENO); }

std::string join(const std::vector<std::string>& parts) { return fmt::format("{}", fmt::join(parts, "; ")); }

}  // namespace headrace::app
