// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "attention/paths/path.h"
#include "headrace/plan.h"

namespace headrace::attention {

/// What a plan has on its GPU: the passes of each path, and their tables in the GPU's memory.
struct DevicePasses;

/// Cuts a plan's rows into passes and puts the tables on its GPU; also has the GPU choose what products it needs.
/// @param extents  of the plan
/// @param passes   of the plan so far, or null: what nobody else has is used again, with its memory
/// @throws Error when CUDA reports an error
void plan_device_passes(const Plan& plan, const PathExtents& extents, std::shared_ptr<DevicePasses>& passes);

}  // namespace headrace::attention
