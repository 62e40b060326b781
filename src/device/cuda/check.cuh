// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "device/cuda/stream.h"
#include "headrace/error.h"

namespace headrace::device::cuda {

/// Throws Error unless the call `what` went well. A kernel that failed earlier may be what is reported.
inline void check(cudaError_t status, std::string_view what) {
  if (status != cudaSuccess) {
    throw Error(std::string(what), "cudaSuccess",
                std::string(cudaGetErrorName(status)) + " (" + cudaGetErrorString(status) + ")");
  }
}

/// For the line after a launch.
inline void check_launch(std::string_view kernel) { check(cudaGetLastError(), kernel); }

[[nodiscard]] inline cudaStream_t native(Stream stream) noexcept { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace headrace::device::cuda
