// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/check.cuh"
#include "device/cuda/timer.h"

namespace headrace::device::cuda {
namespace {

void* create_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return event;
}

}  // namespace

Timer::Timer() : start_(create_event()), stop_(create_event()) {}

Timer::~Timer() {
  cudaEventDestroy(static_cast<cudaEvent_t>(start_));
  cudaEventDestroy(static_cast<cudaEvent_t>(stop_));
}

void Timer::start(Stream stream) const {
  check(cudaEventRecord(static_cast<cudaEvent_t>(start_), native(stream)), "cudaEventRecord");
}

void Timer::stop(Stream stream) const {
  check(cudaEventRecord(static_cast<cudaEvent_t>(stop_), native(stream)), "cudaEventRecord");
}

double Timer::milliseconds() const {
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(stop_)), "cudaEventSynchronize");
  float result = 0.0F;
  check(cudaEventElapsedTime(&result, static_cast<cudaEvent_t>(start_), static_cast<cudaEvent_t>(stop_)),
        "cudaEventElapsedTime");
  return static_cast<double>(result);
}

}  // namespace headrace::device::cuda
