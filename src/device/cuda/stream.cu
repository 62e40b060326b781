// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/check.cuh"
#include "device/cuda/stream.h"

namespace headrace::device::cuda {

void synchronize(Stream stream) { check(cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize"); }

OwnedStream::OwnedStream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  stream_.handle = stream;
}

OwnedStream::~OwnedStream() { cudaStreamDestroy(native(stream_)); }

}  // namespace headrace::device::cuda
