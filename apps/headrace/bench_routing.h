// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "commands.h"
#include "options.h"

namespace headrace::app {

/// `bench --routing`: runs listed requests as routed and down each path alone, and tells how far from the fastest the
/// router's choice was and how far off its predictions were.
[[nodiscard]] ExitStatus run_bench_routing(const Options& options);

}  // namespace headrace::app
