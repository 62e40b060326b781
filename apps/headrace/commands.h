// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "options.h"

namespace headrace::app {

/// The exit statuses of every command.
enum ExitStatus : int {
  kAllWell = 0,
  kCheckFailed = 1,  ///< or a forced path or the device cannot run
  kMisuse = 2,       ///< or bad input
};

/// "0.1.0 (commit 0123456789ab)"
[[nodiscard]] std::string version_text();

// Each prints its result and returns the exit status.
[[nodiscard]] ExitStatus run_version(const Options& options);
[[nodiscard]] ExitStatus run_models(const Options& options);
[[nodiscard]] ExitStatus run_route(const Options& options);
[[nodiscard]] ExitStatus run_prefill(const Options& options);
[[nodiscard]] ExitStatus run_verify(const Options& options);
[[nodiscard]] ExitStatus run_bench(const Options& options);
[[nodiscard]] ExitStatus run_doctor(const Options& options);
[[nodiscard]] ExitStatus run_validate(const Options& options);

}  // namespace headrace::app
