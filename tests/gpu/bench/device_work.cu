// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.cuh"
#include "device_work.h"

namespace headrace::bench {
namespace {

__global__ void wait_kernel(unsigned long long nanoseconds) {
  const auto now = [] {
    unsigned long long time = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
  };
  const unsigned long long begin = now();
  while (now() - begin < nanoseconds) {
  }
}

}  // namespace

void occupy(Stream stream, double milliseconds) {
  device::cuda::launch("wait", wait_kernel, 1, 1, 0, stream, static_cast<unsigned long long>(milliseconds * 1e6));
}

std::int64_t free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  device::cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<std::int64_t>(free);
}

}  // namespace headrace::bench
