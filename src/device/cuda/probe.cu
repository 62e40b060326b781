// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/check.cuh"
#include "device/cuda/probe.h"

namespace headrace::device::cuda {
namespace {

void expect_device(int ordinal) {
  const int count = device_count();
  if (count == 0) {
    throw UnsupportedError("device", "a GPU with its driver", "none");
  }
  if (ordinal < 0 || ordinal >= count) {
    throw Error("device", "cuda:0 to cuda:" + std::to_string(count - 1), "cuda:" + std::to_string(ordinal));
  }
}

}  // namespace

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // having no GPU is no error of later calls
    return 0;
  }
  return count;
}

Capability probe(int ordinal) {
  expect_device(ordinal);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  Capability result;
  result.name = properties.name;
  result.major = properties.major;
  result.minor = properties.minor;
  result.multiprocessors = properties.multiProcessorCount;
  result.shared_bytes_a_block = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
  result.shared_bytes_a_multiprocessor = static_cast<std::int64_t>(properties.sharedMemPerMultiprocessor);
  result.l2_bytes = properties.l2CacheSize;
  result.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  check(cudaDriverGetVersion(&result.driver_version), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&result.runtime_version), "cudaRuntimeGetVersion");
  return result;
}

void make_current(int ordinal) {
  expect_device(ordinal);
  check(cudaSetDevice(ordinal), "cudaSetDevice");
}

}  // namespace headrace::device::cuda
