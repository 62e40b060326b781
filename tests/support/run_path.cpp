// SPDX-License-Identifier: Apache-2.0
#include "support/run_path.h"

#include <algorithm>
#include <stdexcept>

#include "headrace/error.h"

namespace headrace::test {
namespace {
constexpr std::size_t kAlignment = 64;
constexpr std::byte kGuard{0xa5};
}  // namespace

GuardedWorkspace::GuardedWorkspace(std::int64_t bytes)
    : bytes_(static_cast<std::size_t>(bytes)), memory_(bytes_ + 3 * kAlignment, kGuard) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
  begin_ = kAlignment + (kAlignment - address % kAlignment) % kAlignment;
  std::ranges::fill(span(), std::byte{0xff});
}

std::span<std::byte> GuardedWorkspace::span() noexcept { return std::span(memory_).subspan(begin_, bytes_); }

void GuardedWorkspace::expect_intact() const {
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    if ((i < begin_ || i >= begin_ + bytes_) && memory_[i] != kGuard) {
      throw std::logic_error("memory around the workspace was overwritten");
    }
  }
}

Plan plan_path(const AttentionCase& problem, Path path, const RunOptions& options) {
  Limits limits;
  limits.workspace_bytes = options.workspace_limit;
  limits.device.threads = options.threads;
  Hints hints;
  hints.force = path;
  return plan(problem.attention(), problem.batch(), limits, hints);
}

void run_plan(const Plan& plan, const AttentionCase& problem, const Inputs& inputs, const Outputs& outputs) {
  GuardedWorkspace workspace(plan.workspace_bytes());
  attend(plan, problem.weights(), inputs, outputs, workspace.span());
  workspace.expect_intact();
}

OutputBuffer run_path(const AttentionCase& problem, Path path, const RunOptions& options) {
  OutputBuffer result = problem.output_buffer();
  const Plan plan = plan_path(problem, path, options);
  if (plan.workspace_bytes() > options.workspace_limit) {
    throw std::logic_error("the plan needs more workspace than its limit");
  }
  run_plan(plan, problem, problem.inputs(), result.outputs());
  return result;
}

std::int64_t least_workspace(const AttentionCase& problem, Path path) {
  std::int64_t too_small = -1;
  std::int64_t enough = plan_path(problem, path).workspace_bytes();
  while (enough - too_small > 1) {
    const std::int64_t middle = too_small + (enough - too_small) / 2;
    try {
      static_cast<void>(plan_path(problem, path, {.threads = 1, .workspace_limit = middle}));
      enough = middle;
    } catch (const Error&) {
      too_small = middle;
    }
  }
  return enough;
}

}  // namespace headrace::test
