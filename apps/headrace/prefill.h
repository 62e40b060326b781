// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "check.h"
#include "headrace/plan.h"
#include "model_source.h"
#include "options.h"

namespace headrace::app {

/// Milliseconds that the stages of all steps took.
struct StageTimes {
  double plan = 0.0;
  double project = 0.0;
  double append = 0.0;
  double select = 0.0;
  double attend = 0.0;
  double output = 0.0;

  [[nodiscard]] double total() const noexcept { return plan + project + append + select + attend + output; }
};

struct PrefillReport {
  Attention attention;
  StageTimes stages;
  double context_ms = 0.0;  ///< to make the context's keys; no part of the stages
  std::int64_t steps = 0;
  std::array<std::int64_t, 3> tokens{};  ///< query tokens on each path, in the order of kPaths
  std::int64_t workspace_bytes = 0;      ///< the most that a step used
  Plan first_plan;
  Plan last_plan;
  std::optional<OracleCheck> check;
};

/// What is known before the work begins.
struct PrefillStart {
  Attention attention;
  std::int64_t steps = 0;
  std::int64_t workspace_bytes = 0;  ///< the most that a step needs
  Plan first_plan;
};

/// Runs one layer over a batch. `on_start` is called once, when every step is known to be possible.
/// @throws Error for what the machine's memory does not hold, before any of it is allocated
/// @throws ForcedPathError
[[nodiscard]] PrefillReport prefill(const ModelSource& model, std::int64_t layer, const Options& options,
                                    const std::function<void(const PrefillStart&)>& on_start);

}  // namespace headrace::app
