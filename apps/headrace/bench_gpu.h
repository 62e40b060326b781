// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "commands.h"
#include "options.h"

namespace headrace::app {

/// `bench --device cuda`: the time of each stage of a layer, by the GPU's own clock, and the rate of attention.
[[nodiscard]] ExitStatus run_bench_gpu(const Options& options);

}  // namespace headrace::app
