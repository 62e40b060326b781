// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>

#include "headrace/dtype.h"
#include "headrace/export.h"
#include "headrace/view.h"

namespace headrace {

/// An owned, contiguous, row-major array whose element type is known at run time; 64-byte aligned, zero-filled.
/// The library computes on views; this is for weights and for callers that have no allocator of their own.
class HEADRACE_EXPORT Tensor {
 public:
  Tensor() = default;
  /// Throws Error when a size is negative or the byte count overflows or cannot be had.
  Tensor(DType dtype, std::initializer_list<std::int64_t> shape);

  [[nodiscard]] bool empty() const noexcept { return rank_ == 0; }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] std::int64_t dim(int i) const noexcept { return shape_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::byte* data() noexcept { return data_.get(); }
  [[nodiscard]] const std::byte* data() const noexcept { return data_.get(); }

  [[nodiscard]] AnyView view() noexcept;
  [[nodiscard]] ConstAnyView view() const noexcept;
  template <class T>
  [[nodiscard]] View<T> view_as() {
    return view().template as<T>("tensor");
  }
  template <class T>
  [[nodiscard]] View<const T> view_as() const {
    return view().template as<T>("tensor");
  }

 private:
  [[nodiscard]] Dims contiguous_strides() const noexcept;

  struct Free {
    void operator()(std::byte* p) const noexcept;
  };
  std::unique_ptr<std::byte[], Free> data_;
  DType dtype_ = DType::float32;
  int rank_ = 0;
  std::int64_t bytes_ = 0;
  Dims shape_{};
};

}  // namespace headrace
