// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>
#include <type_traits>

#include "device/cuda/check.cuh"
#include "device/cuda/stream.h"
#include "emulator/block.h"
#include "emulator/launch.h"

/// What src/device/cuda/launch.cuh has, for the emulator.
namespace headrace::device::cuda {

template <class... Params>
void launch(std::string_view name, void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
            Stream stream, const std::type_identity_t<Params>&... params) {
  const auto as_one_thread = [kernel, params...] { kernel(params...); };
  const emulator::Configuration configuration{
      .grid = {grid.x, grid.y, grid.z}, .block = {block.x, block.y, block.z}, .shared_bytes = shared_bytes};
  check(emulator::launch(reinterpret_cast<const void*>(kernel), configuration, as_one_thread, native(stream)), name);
}

template <class... Params>
void load(void (*kernel)(Params...)) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)), "cudaFuncGetAttributes");
}

template <class... Params>
void allow_shared_memory(void (*kernel)(Params...), std::size_t bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cudaFuncSetAttribute");
}

template <class T>
[[nodiscard]] T* dynamic_shared() {
  return reinterpret_cast<T*>(emulator::this_block().dynamic_shared());
}

}  // namespace headrace::device::cuda
