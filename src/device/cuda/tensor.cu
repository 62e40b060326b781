// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "device/cuda/check.cuh"
#include "device/cuda/tensor.h"

namespace headrace::device::cuda {
namespace {

/// A contiguous view of a shape, on nothing yet.
AnyView contiguous(DType dtype, int rank, const Dims& shape, std::byte* data) {
  Dims stride{};
  std::int64_t step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    stride[static_cast<std::size_t>(i)] = step;
    step *= shape[static_cast<std::size_t>(i)];
  }
  return {data, dtype, rank, shape, stride};
}

std::int64_t bytes_of(DType dtype, int rank, const Dims& shape) {
  std::int64_t bytes = rank == 0 ? 0 : size_of(dtype);
  for (int i = 0; i < rank; ++i) {
    const std::int64_t n = shape[static_cast<std::size_t>(i)];
    if (n < 0 || __builtin_mul_overflow(bytes, n, &bytes)) {
      throw Error("device tensor size", "at least 0 and addressable", std::to_string(n));
    }
  }
  return bytes;
}

Dims dims(std::initializer_list<std::int64_t> shape) {
  Dims result{};
  std::size_t axis = 0;
  for (const std::int64_t n : shape) {
    result[axis++] = n;
  }
  return result;
}

}  // namespace

DeviceTensor::DeviceTensor(DType dtype, std::initializer_list<std::int64_t> shape)
    : memory_(bytes_of(dtype, static_cast<int>(shape.size()), dims(shape))),
      view_(contiguous(dtype, static_cast<int>(shape.size()), dims(shape), memory_.data())) {}

DeviceTensor::DeviceTensor(const ConstAnyView& host)
    : memory_(bytes_of(host.dtype(), host.rank(), host.shape())),
      view_(contiguous(host.dtype(), host.rank(), host.shape(), memory_.data())) {
  for (int i = 0; i < host.rank(); ++i) {
    if (host.dim(i) > 1 && host.stride(i) != view_.stride(i)) {
      throw Error("host array", "a contiguous one", "stride " + std::to_string(host.stride(i)));
    }
  }
  if (memory_.size_bytes() > 0) {
    memory_.upload({static_cast<const std::byte*>(host.data()), static_cast<std::size_t>(memory_.size_bytes())});
  }
}

Tensor DeviceTensor::download() const {
  if (empty()) {
    return {};
  }
  // Tensor takes its sizes as a list.
  const Dims& n = view_.shape();
  Tensor host = view_.rank() == 1   ? Tensor(view_.dtype(), {n[0]})
                : view_.rank() == 2 ? Tensor(view_.dtype(), {n[0], n[1]})
                : view_.rank() == 3 ? Tensor(view_.dtype(), {n[0], n[1], n[2]})
                                    : Tensor(view_.dtype(), {n[0], n[1], n[2], n[3]});
  memory_.download({host.data(), static_cast<std::size_t>(host.size_bytes())});
  return host;
}

void upload(std::span<const std::byte> from, std::byte* to, Stream stream) {
  check(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, native(stream)), "cudaMemcpyAsync");
}

void download(const std::byte* from, std::span<std::byte> to, Stream stream) {
  check(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, native(stream)), "cudaMemcpyAsync");
  synchronize(stream);
}

}  // namespace headrace::device::cuda
