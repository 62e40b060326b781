// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "headrace/attention.h"
#include "support/attention_case.h"
#include "support/output_buffer.h"

namespace headrace::test {

/// Memory of exactly `bytes` bytes at a multiple of 64, full of NaN, between guards.
class GuardedWorkspace {
 public:
  explicit GuardedWorkspace(std::int64_t bytes);
  [[nodiscard]] std::span<std::byte> span() noexcept;
  /// @throws std::logic_error when a guard was overwritten
  void expect_intact() const;

 private:
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::size_t begin_;
};

struct RunOptions {
  int threads = 1;
  std::int64_t workspace_limit = std::numeric_limits<std::int64_t>::max();
};

/// The plan of a case with one path forced.
[[nodiscard]] Plan plan_path(const AttentionCase& problem, Path path, const RunOptions& options = {});

/// Runs a plan on the case's inputs through the public API. @throws std::logic_error when the workspace was overrun
void run_plan(const Plan& plan, const AttentionCase& problem, const Inputs& inputs, const Outputs& outputs);

/// Plans and runs a case with one path forced.
[[nodiscard]] OutputBuffer run_path(const AttentionCase& problem, Path path, const RunOptions& options = {});

/// The smallest workspace limit that a case can be planned with, found by bisection.
[[nodiscard]] std::int64_t least_workspace(const AttentionCase& problem, Path path);

}  // namespace headrace::test
