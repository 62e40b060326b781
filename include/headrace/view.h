// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <type_traits>

#include "headrace/dtype.h"
#include "headrace/export.h"

namespace headrace {

/// Sizes or strides of a view, at most four dimensions.
using Dims = std::array<std::int64_t, 4>;

/// Throws Error unless `expected` are exactly the first `rank` entries of `shape`. A negative expected size matches
/// any.
HEADRACE_EXPORT void expect_shape(std::string_view name, const Dims& shape, int rank,
                                  std::initializer_list<std::int64_t> expected);
/// Throws Error unless `actual` is `expected`.
HEADRACE_EXPORT void expect_dtype(std::string_view name, DType expected, DType actual);

/// A strided window on memory somebody else owns: pointer, shape, strides (both in elements). Copying copies the
/// window. `View<const T>` is read-only, and every input of the library is one. A default-constructed view is empty.
template <class T>
class View {
 public:
  View() = default;
  /// Contiguous, row-major.
  View(T* data, std::initializer_list<std::int64_t> shape) noexcept
      : data_(data), rank_(static_cast<int>(shape.size())) {
    int i = 0;
    for (const std::int64_t n : shape) {
      shape_[index(i++)] = n;
    }
    std::int64_t step = 1;
    for (i = rank_ - 1; i >= 0; --i) {
      stride_[index(i)] = step;
      step *= shape_[index(i)];
    }
  }
  View(T* data, int rank, const Dims& shape, const Dims& stride) noexcept
      : data_(data), rank_(rank), shape_(shape), stride_(stride) {}
  /// View<T> converts to View<const T>, as pointers do.
  template <class U, std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>, int> = 0>
  View(const View<U>& other) noexcept  // NOLINT(google-explicit-constructor)
      : data_(other.data()), rank_(other.rank()), shape_(other.shape()), stride_(other.strides()) {}

  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] const Dims& shape() const noexcept { return shape_; }
  [[nodiscard]] const Dims& strides() const noexcept { return stride_; }
  [[nodiscard]] std::int64_t dim(int i) const noexcept { return shape_[index(i)]; }
  [[nodiscard]] std::int64_t stride(int i) const noexcept { return stride_[index(i)]; }
  /// True for a view that was never given (an absent sink, an absent count).
  [[nodiscard]] bool empty() const noexcept { return rank_ == 0; }
  [[nodiscard]] std::int64_t size() const noexcept {
    std::int64_t n = rank_ == 0 ? 0 : 1;
    for (int i = 0; i < rank_; ++i) {
      n *= dim(i);
    }
    return n;
  }

  template <class... I>
  [[nodiscard]] T& operator()(I... i) const noexcept {
    return *at(i...);
  }
  /// Pointer to the element at the given leading indices (the remaining ones are 0): `q.at(t, h)` is a head's row.
  template <class... I>
  [[nodiscard]] T* at(I... i) const noexcept {
    std::int64_t offset = 0;
    int axis = 0;
    ((offset += static_cast<std::int64_t>(i) * stride_[index(axis++)]), ...);
    return data_ + offset;
  }
  /// Entries [begin, end) of the first dimension.
  [[nodiscard]] View slice(std::int64_t begin, std::int64_t end) const noexcept {
    View result = *this;
    result.data_ = data_ + begin * stride_[0];
    result.shape_[0] = end - begin;
    return result;
  }
  /// The matrix with its two dimensions exchanged; no data moves.
  [[nodiscard]] View transposed() const noexcept {
    return View(data_, 2, {shape_[1], shape_[0]}, {stride_[1], stride_[0]});
  }
  /// Throws Error naming `name` unless the shape is `expected` (a negative size matches any).
  void expect(std::string_view name, std::initializer_list<std::int64_t> expected) const {
    expect_shape(name, shape_, rank_, expected);
  }

 private:
  static constexpr std::size_t index(int i) noexcept { return static_cast<std::size_t>(i); }

  T* data_ = nullptr;
  int rank_ = 0;
  Dims shape_{};
  Dims stride_{};
};

/// A view whose element type is known at run time. `Void` is `void` or `const void`.
template <class Void>
class BasicAnyView {
 public:
  BasicAnyView() = default;
  BasicAnyView(Void* data, DType dtype, int rank, const Dims& shape, const Dims& stride) noexcept
      : data_(data), dtype_(dtype), rank_(rank), shape_(shape), stride_(stride) {}
  /// Forgets the element type, loses nothing.
  template <class T, std::enable_if_t<std::is_convertible_v<T*, Void*>, int> = 0>
  BasicAnyView(const View<T>& view) noexcept  // NOLINT(google-explicit-constructor)
      : data_(view.data()),
        dtype_(DTypeOf<std::remove_const_t<T>>::value),
        rank_(view.rank()),
        shape_(view.shape()),
        stride_(view.strides()) {}
  /// AnyView converts to ConstAnyView.
  template <class Other, std::enable_if_t<std::is_same_v<Other, void> && std::is_const_v<Void>, int> = 0>
  BasicAnyView(const BasicAnyView<Other>& other) noexcept  // NOLINT(google-explicit-constructor)
      : data_(other.data()),
        dtype_(other.dtype()),
        rank_(other.rank()),
        shape_(other.shape()),
        stride_(other.strides()) {}

  [[nodiscard]] Void* data() const noexcept { return data_; }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] const Dims& shape() const noexcept { return shape_; }
  [[nodiscard]] const Dims& strides() const noexcept { return stride_; }
  [[nodiscard]] std::int64_t dim(int i) const noexcept { return shape_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] std::int64_t stride(int i) const noexcept { return stride_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] bool empty() const noexcept { return rank_ == 0; }
  [[nodiscard]] BasicAnyView slice(std::int64_t begin, std::int64_t end) const noexcept {
    using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
    BasicAnyView result = *this;
    result.data_ = static_cast<Byte*>(data_) + begin * stride_[0] * size_of(dtype_);
    result.shape_[0] = end - begin;
    return result;
  }
  [[nodiscard]] BasicAnyView transposed() const noexcept {
    return BasicAnyView(data_, dtype_, 2, {shape_[1], shape_[0]}, {stride_[1], stride_[0]});
  }
  void expect(std::string_view name, std::initializer_list<std::int64_t> expected) const {
    expect_shape(name, shape_, rank_, expected);
  }
  /// The typed view; throws Error naming `name` when the dtype is another.
  template <class T>
  [[nodiscard]] auto as(std::string_view name = "view") const {
    using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
    expect_dtype(name, DTypeOf<T>::value, dtype_);
    return View<Element>(static_cast<Element*>(data_), rank_, shape_, stride_);
  }

 private:
  Void* data_ = nullptr;
  DType dtype_ = DType::float32;
  int rank_ = 0;
  Dims shape_{};
  Dims stride_{};
};

using AnyView = BasicAnyView<void>;
using ConstAnyView = BasicAnyView<const void>;

}  // namespace headrace
