// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "attention/paths/path.h"
#include "headrace/plan.h"

namespace headrace::attention {

/// What a plan has for its GPU: the passes of each path, and their tables (device_passes.h).
struct DevicePasses;

/// Chooses the products of a geometry and loads every kernel that it may take, unless that was done before; waits then.
/// @return bytes that products take of a call's workspace
/// @throws Error when CUDA reports an error
std::int64_t prepare_device(CudaDevice& device, const Geometry& geometry);

/// Cuts a plan's rows into passes and lays out their tables. Calls nothing of CUDA.
/// @param extents  of the plan
/// @param passes   of the plan so far, or null: what nobody else has is used again, with its memory
/// @return bytes of the tables
std::int64_t plan_device_passes(const Plan& plan, const PathExtents& extents, std::shared_ptr<DevicePasses>& passes);

/// Loads the kernels that `upload` takes.
void load_upload();

}  // namespace headrace::attention
