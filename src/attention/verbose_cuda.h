// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "attention/verbose.h"
#include "device/cuda/stream.h"
#include "device/cuda/timer.h"

namespace headrace::attention {

/// A call on a GPU, of which HEADRACE_VERBOSE asks for a line. Only for Verbosity::times, and where the stream is not
/// being captured, anything is queued or waited for. The plan's GPU is current.
class VerboseCudaCall {
 public:
  VerboseCudaCall(const Plan& plan, std::int64_t tokens, Stream stream);

  /// After the call's work has been queued, once: prints the line.
  void finish();

 private:
  const Plan& plan_;
  std::int64_t tokens_;
  Stream stream_;
  std::optional<device::cuda::Timer> timer_;
};

}  // namespace headrace::attention
