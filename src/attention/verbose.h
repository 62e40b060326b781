// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include "headrace/plan.h"

namespace headrace::attention {

/// With HEADRACE_VERBOSE=1 in the environment, prints one line to stderr when it goes out of scope: what `attend` ran
/// and how long it took. Without it, does nothing.
class VerboseCall {
 public:
  VerboseCall(const Plan& plan, std::int64_t tokens) noexcept;
  ~VerboseCall();
  VerboseCall(const VerboseCall&) = delete;
  VerboseCall& operator=(const VerboseCall&) = delete;

  /// Rows that a path has served.
  void add(Path path, std::int64_t rows) noexcept { rows_[static_cast<std::size_t>(path)] += rows; }

 private:
  const Plan& plan_;
  std::int64_t tokens_;
  std::int64_t rows_[3] = {};
  std::chrono::steady_clock::time_point start_;
};

}  // namespace headrace::attention
