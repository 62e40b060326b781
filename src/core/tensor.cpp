// SPDX-License-Identifier: Apache-2.0
#include "headrace/tensor.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include "headrace/error.h"

namespace headrace {
namespace {
constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max() / 2;
}  // namespace

Tensor::Tensor(DType dtype, std::initializer_list<std::int64_t> shape)
    : dtype_(dtype), rank_(static_cast<int>(shape.size())) {
  std::int64_t bytes = size_of(dtype);
  std::size_t axis = 0;
  for (const std::int64_t n : shape) {
    if (n < 0 || (n > 0 && bytes > kLargest / n)) {
      throw Error("tensor size", "at least 0 and addressable", std::to_string(n));
    }
    bytes *= n;
    shape_[axis++] = n;
  }
  bytes_ = bytes;
  const std::int64_t rounded = (bytes + kAlignment) / kAlignment * kAlignment;
  void* p = std::aligned_alloc(static_cast<std::size_t>(kAlignment), static_cast<std::size_t>(rounded));
  if (p == nullptr) {
    throw OutOfMemoryError("tensor", "memory for " + std::to_string(bytes) + " bytes", "none");
  }
  std::memset(p, 0, static_cast<std::size_t>(rounded));
  data_.reset(static_cast<std::byte*>(p));
}

void Tensor::Free::operator()(std::byte* p) const noexcept { std::free(p); }

AnyView Tensor::view() noexcept { return AnyView(data_.get(), dtype_, rank_, shape_, contiguous_strides()); }

ConstAnyView Tensor::view() const noexcept {
  return ConstAnyView(data_.get(), dtype_, rank_, shape_, contiguous_strides());
}

Dims Tensor::contiguous_strides() const noexcept {
  Dims stride{};
  std::int64_t step = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    stride[static_cast<std::size_t>(i)] = step;
    step *= dim(i);
  }
  return stride;
}

}  // namespace headrace
