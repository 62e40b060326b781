// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "headrace/plan.h"

namespace headrace::app {

/// What is compiled in for GPUs.
struct CudaKernels {
  std::string architecture;            ///< "sm_90a"
  std::vector<Path> paths;             ///< that have kernels
  std::vector<std::string> head_dims;  ///< of the MHA paths, as nope+rope/v: "192+64/256"
};

/// Nothing in a build without CUDA. Needs no GPU.
[[nodiscard]] std::optional<CudaKernels> cuda_kernels();

}  // namespace headrace::app
