// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headrace/plan.h"

namespace headrace::routing {

/// Throws Error unless a batch is well formed and within what the limits state. The limits themselves were checked when
/// the plan was made.
void validate_batch(const Batch& batch, const Limits& limits);

}  // namespace headrace::routing
