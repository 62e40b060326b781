// SPDX-License-Identifier: Apache-2.0
//
// In place of cuda_*.cpp in a build without CUDA, where no CudaDevice can be made.
#include "cuda_kernels.h"
#include "headrace/error.h"
#include "stages.h"

namespace headrace::app {
namespace {

[[noreturn]] void refuse() {
  throw UnsupportedError("device", "a library built with CUDA (HEADRACE_CUDA)", "one without");
}

}  // namespace

std::optional<CudaKernels> cuda_kernels() { return std::nullopt; }

std::unique_ptr<Stages> make_cuda_stages(const ModelConfig& /*config*/, std::int64_t /*layer*/,
                                         LayerWeights /*weights*/, float /*cache_scale*/,
                                         const std::shared_ptr<CudaDevice>& /*device*/) {
  refuse();
}

}  // namespace headrace::app
