// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "headrace/tensor.h"
#include "headrace/view.h"

namespace headrace::device::cuda {

/// A contiguous, row-major array in the memory of the current device, with no defined content at first: what Tensor is
/// on the host.
class DeviceTensor {
 public:
  DeviceTensor() = default;
  /// @throws Error when a size is negative, or the device has not that much memory
  DeviceTensor(DType dtype, std::initializer_list<std::int64_t> shape);
  /// A copy of a contiguous array of the host; waits. An empty view gives an empty tensor.
  explicit DeviceTensor(const ConstAnyView& host);

  [[nodiscard]] bool empty() const noexcept { return view_.empty(); }
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return memory_.size_bytes(); }
  [[nodiscard]] AnyView view() const noexcept { return view_; }
  template <class T>
  [[nodiscard]] View<T> view_as() const {
    return empty() ? View<T>() : View<T>(view_.template as<T>("device tensor"));
  }
  /// A copy on the host, after everything the device has to do.
  [[nodiscard]] Tensor download() const;

 private:
  DeviceBuffer memory_;
  AnyView view_;
};

/// Queues a copy from the host to the device; `from` may change once the call returns.
void upload(std::span<const std::byte> from, std::byte* to, Stream stream);
/// Copies from the device to the host, after what is queued on the stream; waits.
void download(const std::byte* from, std::span<std::byte> to, Stream stream);

}  // namespace headrace::device::cuda
