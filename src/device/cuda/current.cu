// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/check.cuh"
#include "device/cuda/current.h"

namespace headrace::device::cuda {

int current_device() {
  int ordinal = 0;
  check(cudaGetDevice(&ordinal), "cudaGetDevice");
  return ordinal;
}

CurrentDevice::CurrentDevice(int ordinal) : before_(current_device()) {
  if (before_ != ordinal) {
    check(cudaSetDevice(ordinal), "cudaSetDevice");
    changed_ = true;
  }
}

CurrentDevice::~CurrentDevice() {
  if (changed_) {
    cudaSetDevice(before_);
  }
}

}  // namespace headrace::device::cuda
