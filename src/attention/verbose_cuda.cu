// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "attention/verbose_cuda.h"
#include "device/cuda/check.cuh"

namespace headrace::attention {
namespace {

using device::cuda::check;

/// As long as it lives, what this thread calls leaves captures alone, whichever streams they go on in: waiting for an
/// event would break those that watch over all threads.
class BesideCaptures {
 public:
  BesideCaptures() { check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode"); }
  ~BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

bool is_captured(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(device::cuda::native(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

VerboseCudaCall::VerboseCudaCall(const Plan& plan, std::int64_t tokens, Stream stream)
    : plan_(plan), tokens_(tokens), stream_(stream) {
  if (verbosity() == Verbosity::times && !is_captured(stream)) {
    const BesideCaptures beside;
    timer_.emplace().start(stream);
  }
}

void VerboseCudaCall::finish() {
  if (verbosity() == Verbosity::silent) {
    return;
  }
  CallReport report{.plan = plan_, .tokens = tokens_};
  // Exact lengths are on the GPU: these are the rows that were planned.
  for (const RequestPlan& request : plan_.requests()) {
    for (const Segment& segment : request.segments) {
      report.rows[static_cast<std::size_t>(segment.path)] += segment.end - segment.begin;
    }
  }
  if (timer_) {
    const BesideCaptures beside;
    timer_->stop(stream_);
    report.ms = timer_->milliseconds();
    timer_.reset();
  }
  print(report);
}

}  // namespace headrace::attention
