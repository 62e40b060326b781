// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "headrace/plan.h"

/// HEADRACE_VERBOSE: a line to stderr for each call of `attend`.
namespace headrace::attention {

enum class Verbosity : std::uint8_t {
  silent,
  lines,  ///< the GPU's without times, so that nothing is queued or waited for
  times,  ///< the GPU's with times, for which a call waits
};

/// What a value of HEADRACE_VERBOSE asks for. @param value  null where it is not set
[[nodiscard]] Verbosity verbosity_of(const char* value) noexcept;
/// What the environment asks for; read once a process.
[[nodiscard]] Verbosity verbosity() noexcept;

/// What is known of a call.
struct CallReport {
  const Plan& plan;
  std::int64_t tokens = 0;
  std::int64_t rows[3] = {};  ///< that each path serves
  std::optional<double> ms = std::nullopt;
};

/// The line of a call, its end included: fields in a fixed order, comma-separated, for grep and cut.
[[nodiscard]] std::string line_of(const CallReport& report);
/// Writes the line to stderr.
void print(const CallReport& report) noexcept;

/// A call on the processor: where the environment asks for it, prints its line when it goes out of scope.
class VerboseCall {
 public:
  VerboseCall(const Plan& plan, std::int64_t tokens) noexcept;
  ~VerboseCall();
  VerboseCall(const VerboseCall&) = delete;
  VerboseCall& operator=(const VerboseCall&) = delete;

  /// Rows that a path has served.
  void add(Path path, std::int64_t rows) noexcept { report_.rows[static_cast<std::size_t>(path)] += rows; }

 private:
  CallReport report_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace headrace::attention
