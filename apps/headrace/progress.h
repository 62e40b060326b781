// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace headrace::app {

/// A progress bar on stderr for work that takes more than two seconds. It shows only when stdout and stderr are
/// terminals, so that nothing disturbs a script.
class Progress {
 public:
  Progress(std::string label, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Whether it may show.
  [[nodiscard]] bool on_terminal() const noexcept { return terminal_; }
  void advance(std::int64_t amount);
  /// Takes the bar away until the next advance, so that a line can be printed in its place.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  std::int64_t total_;
  std::int64_t done_ = 0;
  bool terminal_;
  bool shown_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_{};
};

}  // namespace headrace::app
