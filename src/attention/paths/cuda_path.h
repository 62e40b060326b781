// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "headrace/plan.h"

namespace headrace::attention {

/// What a plan has on its GPU: the passes of each path, and their tables in the GPU's memory.
struct DevicePasses;

/// Cuts a plan's rows into passes and puts the tables on its GPU; also has the GPU choose what products it needs.
/// @throws Error when CUDA reports an error
[[nodiscard]] std::shared_ptr<const DevicePasses> make_device_passes(const Plan& plan);

}  // namespace headrace::attention
