// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "attention/paths/path.h"
#include "headrace/plan.h"

namespace headrace::routing {

/// Milliseconds that counted work takes at a profile's rates. The parts do not overlap on a CPU, so they add up.
/// @param rows  query rows the work belongs to; topk_mqa cannot use more threads than that
[[nodiscard]] double predict_ms(const attention::Work& work, const Profile& profile, int threads, std::int64_t rows);

}  // namespace headrace::routing
