// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "headrace/view.h"

namespace headrace::layer::cuda {

/// The memory of one intermediate result, which grows with the largest step.
class Scratch {
 public:
  /// A contiguous array on it, with no defined content. Where it has to grow, waits for what the stream still does with
  /// the old memory.
  template <class T>
  [[nodiscard]] View<T> take(std::initializer_list<std::int64_t> shape, Stream stream) {
    std::int64_t bytes = static_cast<std::int64_t>(sizeof(T));
    for (const std::int64_t n : shape) {
      bytes *= n;
    }
    if (bytes > memory_.size_bytes()) {
      device::cuda::synchronize(stream);
      memory_ = {};
      memory_ = device::cuda::DeviceBuffer(bytes);
    }
    return View<T>(reinterpret_cast<T*>(memory_.data()), shape);
  }

 private:
  device::cuda::DeviceBuffer memory_;
};

}  // namespace headrace::layer::cuda
