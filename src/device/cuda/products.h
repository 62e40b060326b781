// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/cuda/stream.h"
#include "headrace/dtype.h"
#include "headrace/view.h"

namespace headrace::device::cuda {

/// cuBLASLt, for the device that is current at construction. Nothing in it is written by a product.
class ProductLibrary {
 public:
  ProductLibrary();
  ~ProductLibrary();
  ProductLibrary(const ProductLibrary&) = delete;
  ProductLibrary& operator=(const ProductLibrary&) = delete;

 private:
  friend class Product;
  struct State;
  std::unique_ptr<State> state_;
};

/// What stays the same from call to call of a product.
struct ProductShape {
  std::int64_t columns = 0;  ///< of c; a multiple of 8
  std::int64_t inner = 0;    ///< a multiple of 8
  std::int64_t batch = 1;
  bool b_transposed = false;    ///< b is [batch, columns, inner], not [batch, inner, columns]
  DType out = DType::bfloat16;  ///< or float32
  bool split_sums = true;       ///< for few rows sums may be split: faster, and bits depend on how many rows there are
};

/// c[:, g] = a[:, g] b[g] for g in [0, batch): bfloat16 operands, accumulated in float32 and rounded once, for any
/// number of rows. The algorithms, at most three, are chosen at construction by ranges of the number of rows, so that
/// no number of rows is the first to pay for a choice, and the bits depend on the shape and the number of rows alone.
/// Operands that do not suit them go to a kernel of the library's own (plain_product.h).
class Product {
 public:
  /// @throws Error for a shape that cuBLASLt has no algorithm for
  Product(const ProductLibrary& library, const ProductShape& shape);
  ~Product();
  Product(Product&&) noexcept;
  Product& operator=(Product&&) = delete;
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  /// Runs every algorithm once, on memory of its own, and waits: afterwards all code is on the device.
  void warm_up(Stream stream) const;

  /// Bytes of workspace that its algorithms take at most. Where no sums are split it is a counter of tiles or nothing;
  /// cuBLASLt clears the counter by an operation of its own.
  [[nodiscard]] std::int64_t workspace_bytes() const noexcept;

  /// Queues the product; allocates nothing and can be captured in a graph.
  /// @param a  [rows, batch, inner]
  /// @param b  [batch, columns, inner] or [batch, inner, columns]
  /// @param c  [rows, batch, columns] of the shape's dtype
  /// @param workspace  of at least workspace_bytes(), at a multiple of 256 bytes; its content means nothing before and
  ///                   after
  /// It is fast where the last dim of each is contiguous, and addresses and other strides are multiples of 16 bytes.
  /// @throws Error for operands of other shapes
  void run(View<const bfloat16> a, View<const bfloat16> b, AnyView c, std::span<std::byte> workspace,
           Stream stream) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headrace::device::cuda
