// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "device/cuda/stream.h"
#include "headrace/error.h"

namespace headrace::device::cuda {

/// Throws DeviceError, or OutOfMemoryError, unless the call `what` went well. A kernel that failed earlier may be what
/// is reported.
inline void check(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) {
    return;
  }
  cudaGetLastError();  // told here: the next launch is not to report it again
  const std::string actual = std::string(cudaGetErrorName(status)) + " (" + cudaGetErrorString(status) + ")";
  if (status == cudaErrorMemoryAllocation) {
    throw OutOfMemoryError(std::string(what), "cudaSuccess", actual);
  }
  throw DeviceError(std::string(what), "cudaSuccess", actual);
}

/// For the line after a launch.
inline void check_launch(std::string_view kernel) { check(cudaGetLastError(), kernel); }

[[nodiscard]] inline cudaStream_t native(Stream stream) noexcept { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace headrace::device::cuda
