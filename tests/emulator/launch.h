// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "block.h"

namespace headrace::emulator {

/// What `<<<>>>` does: runs a kernel, or queues it in the graph that is captured on the stream. A launch whose
/// configuration a GPU of compute capability 9.0 refuses is refused.
/// @param kernel  whose attributes count
/// @param thread  what each of its threads does
[[nodiscard]] cudaError_t launch(const void* kernel, const Configuration& configuration,
                                 const std::function<void()>& thread, cudaStream_t stream);

/// Does some work, or queues it in the graph that is captured on the stream.
cudaError_t queue(cudaStream_t stream, std::function<void()> work);

}  // namespace headrace::emulator
