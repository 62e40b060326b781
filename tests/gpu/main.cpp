// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdio>

#include "device/cuda/probe.h"

namespace {

/// What CTest takes for "skipped".
constexpr int kSkipped = 77;

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (headrace::device::cuda::device_count() == 0) {
    std::puts("gpu_tests: skipped: there is no GPU here");
    return kSkipped;
  }
  const auto gpu = headrace::device::cuda::probe(0);
  std::printf("gpu_tests: %s, compute capability %d.%d, driver for CUDA %d\n", gpu.name.c_str(), gpu.major, gpu.minor,
              gpu.driver_version);
  if (!gpu.is_sm90()) {
    std::puts("gpu_tests: skipped: the kernels are for compute capability 9.0");
    return kSkipped;
  }
  headrace::device::cuda::make_current(0);
  return RUN_ALL_TESTS();
}
