// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "headrace/plan.h"
#include "output.h"

namespace headrace::app {

/// The predicted time of all requests.
[[nodiscard]] double predicted_ms(const Plan& plan);

/// Query tokens on each path, in the order of kPaths.
[[nodiscard]] std::array<std::int64_t, 3> tokens_by_path(const Plan& plan);

/// One object a request: the path, the predicted time, the reason, and every other path's time or reasons.
[[nodiscard]] Json requests_json(const Plan& plan);

/// The same for people; equal requests share a row ("4 x 1+8192"), and lines end within `width`.
[[nodiscard]] std::string plan_table(const Plan& plan, std::size_t width);

}  // namespace headrace::app
