// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "captured_graph.h"
#include "device/cuda/check.cuh"

namespace headrace::test {

using device::cuda::check;
using device::cuda::native;

CapturedGraph::CapturedGraph(const std::function<void(Stream)>& work) {
  check(cudaStreamBeginCapture(native(stream_), cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    work(stream_);
  } catch (...) {
    cudaStreamEndCapture(native(stream_), &graph);
    throw;
  }
  check(cudaStreamEndCapture(native(stream_), &graph), "cudaStreamEndCapture");
  const cudaError_t counted = cudaGraphGetNodes(graph, nullptr, &nodes_);
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(counted, "cudaGraphGetNodes");
  check(status, "cudaGraphInstantiate");
  executable_ = executable;
}

CapturedGraph::~CapturedGraph() { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_)); }

void CapturedGraph::replay() const {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), native(stream_)), "cudaGraphLaunch");
  synchronize(stream_);
}

}  // namespace headrace::test
