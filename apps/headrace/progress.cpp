// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace headrace::app {
namespace {

constexpr std::chrono::seconds kSilence{2};
constexpr std::chrono::milliseconds kInterval{100};
constexpr std::int64_t kBarWidth = 40;

}  // namespace

Progress::Progress(std::string label, std::int64_t total)
    : label_(std::move(label)), total_(total), terminal_(isatty(STDOUT_FILENO) == 1 && isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (shown_) {
    std::fputs("\r\x1b[K", stderr);  // carriage return, erase to the end of the line
    shown_ = false;
  }
}

void Progress::advance(std::int64_t amount) {
  done_ += amount;
  const Clock::time_point now = Clock::now();
  if (!terminal_ || total_ <= 0 || now - start_ < kSilence || now - last_ < kInterval) {
    return;
  }
  last_ = now;
  shown_ = true;
  const double share = std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
  const auto filled = static_cast<std::int64_t>(share * static_cast<double>(kBarWidth));
  const std::string line =
      fmt::format("\r{} [{:#<{}}{: <{}}] {:3.0f} %", label_, "", filled, "", kBarWidth - filled, share * 100.0);
  (void)std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace headrace::app
