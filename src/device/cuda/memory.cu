// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "device/cuda/check.cuh"
#include "device/cuda/memory.h"

namespace headrace::device::cuda {

DeviceBuffer::DeviceBuffer(std::int64_t bytes) : bytes_(bytes) {
  if (bytes < 0) {
    throw Error("device memory", "a size >= 0", std::to_string(bytes));
  }
  void* data = nullptr;
  const cudaError_t status = bytes == 0 ? cudaSuccess : cudaMalloc(&data, static_cast<std::size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // this error is told here, and later calls are not to report it again
    throw OutOfMemoryError("device memory", std::to_string(bytes) + " bytes", "not that much left");
  }
  check(status, "cudaMalloc");
  data_.reset(static_cast<std::byte*>(data));
}

void DeviceBuffer::Free::operator()(std::byte* data) const noexcept { cudaFree(data); }

void DeviceBuffer::expect_inside(std::int64_t offset, std::size_t bytes) const {
  if (offset < 0 || offset > bytes_ || static_cast<std::int64_t>(bytes) > bytes_ - offset) {
    throw Error("device memory", "a range within " + std::to_string(bytes_) + " bytes",
                std::to_string(bytes) + " bytes from " + std::to_string(offset));
  }
}

void DeviceBuffer::fill(std::byte value) const {
  check(cudaMemset(data(), std::to_integer<int>(value), static_cast<std::size_t>(bytes_)), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void DeviceBuffer::upload(std::span<const std::byte> from, std::int64_t offset) const {
  expect_inside(offset, from.size());
  check(cudaMemcpy(data() + offset, from.data(), from.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void DeviceBuffer::download(std::span<std::byte> to, std::int64_t offset) const {
  expect_inside(offset, to.size());
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaMemcpy(to.data(), data() + offset, to.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
}

}  // namespace headrace::device::cuda
