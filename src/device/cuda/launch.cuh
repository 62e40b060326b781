// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string_view>
#include <type_traits>

#include "device/cuda/check.cuh"
#include "device/cuda/stream.h"

/// How kernels are launched and where a block's shared memory lies: the one place with CUDA's own syntax for either, in
/// whose stead the emulator (tests/emulator) has another.
namespace headrace::device::cuda {

/// Queues a kernel on a stream.
/// @param name          of the kernel, for the error
/// @param shared_bytes  of dynamic shared memory
/// @throws Error when CUDA refuses the launch, or a kernel that failed earlier is reported by it
template <class... Params>
void launch(std::string_view name, void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
            Stream stream, const std::type_identity_t<Params>&... params) {
  kernel<<<grid, block, shared_bytes, native(stream)>>>(params...);
  check_launch(name);
}

/// Loads a kernel's code onto the current device, which its first launch would do, at a time when it may.
template <class... Params>
void load(void (*kernel)(Params...)) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
}

/// Lets blocks of a kernel have as much dynamic shared memory, beyond the 48 KiB that need no asking; also loads its
/// code.
template <class... Params>
void allow_shared_memory(void (*kernel)(Params...), std::size_t bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cudaFuncSetAttribute");
}

/// The block's dynamic shared memory.
template <class T>
[[nodiscard]] __device__ T* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
  static_assert(alignof(T) <= 1024);
  return reinterpret_cast<T*>(dynamic_shared_memory);
}

}  // namespace headrace::device::cuda
