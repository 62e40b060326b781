// SPDX-License-Identifier: Apache-2.0
// Products of any size on the tile products: columns of b are packed into panels, which rows of a then run over. A
// library for matrix products chooses its algorithm by the size of the product, and with it the order of the sums; the
// tile products have one order, so that cutting, packing and threading below cannot reach the bits. Sums over a part
// of K are kept in float32, where the next part continues them: leaving the registers in between loses nothing.
#include "device/matmul.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <type_traits>

#include "device/bf16_products.h"
#include "device/parallel.h"
#include "device/tile_products.h"
#include "device/transpose.h"
#include "headrace/error.h"

namespace headrace::device {
namespace {

/// A panel holds kPanelColumns columns for kPanelUnits steps of the inner loop: 128 KiB, which stay in a core's
/// second-level cache while rows of a, read once a panel, stream past.
constexpr std::int64_t kPanelColumns = 64;
constexpr std::int64_t kPanelUnits = 512;
/// Rows that have to be widened or padded are copied so many at a time: a multiple of the register tiles' heights.
constexpr std::int64_t kCopiedRows = 96;
/// Rows a task: enough for the packing of a panel to be small beside its use, fewer where threads would be idle.
constexpr std::int64_t kLeastTaskRows = 96;
constexpr std::int64_t kMostTaskRows = 960;
constexpr std::int64_t kTasksAThread = 4;

constexpr std::size_t kAlignment = 64;

/// float32 arithmetic; bfloat16 operands are widened on the way into panels and copies.
struct FloatArithmetic {
  using Element = float;
  static constexpr std::int64_t kPanelDepth = kPanelUnits;

  [[nodiscard]] static std::int64_t padded(std::int64_t depth) noexcept { return depth; }

  template <class T>
  static void pack(const View<const T>& b, std::int64_t k, std::int64_t depth, std::int64_t column,
                   std::int64_t columns, float* panel) {
    if (b.stride(1) != 1) {
      transpose(columns, depth, b.at(k, column), b.stride(1), panel, columns);
      return;
    }
    for (std::int64_t i = 0; i < depth; ++i) {
      const T* row = b.at(k + i, column);
      std::transform(row, row + columns, panel + i * columns, [](T value) { return static_cast<float>(value); });
    }
  }

  static void add_products(std::int64_t rows, std::int64_t columns, std::int64_t depth, const float* a,
                           std::int64_t a_ld, const float* panel, float* sums, std::int64_t sums_ld) {
    products_nn_add(rows, columns, depth, a, a_ld, panel, columns, sums, sums_ld);
  }

  static void round(std::int64_t n, const float* values, bfloat16* out) {
    std::transform(values, values + n, out, [](float value) { return bfloat16(value); });
  }
};

/// bfloat16 arithmetic on machines that have it: a step of the inner loop takes a pair of k.
struct PairArithmetic {
  using Element = bfloat16;
  static constexpr std::int64_t kPanelDepth = 2 * kPanelUnits;

  [[nodiscard]] static std::int64_t padded(std::int64_t depth) noexcept { return (depth + 1) / 2 * 2; }

  static void pack(const View<const bfloat16>& b, std::int64_t k, std::int64_t depth, std::int64_t column,
                   std::int64_t columns, bfloat16* panel) {
    if (b.stride(1) == 1) {
      pack_pairs(depth, columns, b.at(k, column), b.stride(0), panel);
    } else {
      pack_pairs_transposed(depth, columns, b.at(k, column), b.stride(1), columns, panel);
    }
  }

  static void add_products(std::int64_t rows, std::int64_t columns, std::int64_t depth, const bfloat16* a,
                           std::int64_t a_ld, const bfloat16* panel, float* sums, std::int64_t sums_ld) {
    bf16_products_add(rows, columns, padded(depth), a, a_ld, panel, columns, sums, sums_ld);
  }

  static void round(std::int64_t n, const float* values, bfloat16* out) { round_to_bf16(n, values, out); }
};

struct Range {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

Range part_of(std::int64_t all, std::int64_t size, std::int64_t index) noexcept {
  return {index * size, std::min(size, all - index * size)};
}

std::int64_t parts(std::int64_t all, std::int64_t size) noexcept { return (all + size - 1) / size; }

/// Uninitialised memory, aligned for the widest vectors.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::int64_t count)
      : data_(static_cast<T*>(::operator new(static_cast<std::size_t>(count) * sizeof(T), kAligned))) {}
  [[nodiscard]] T* data() const noexcept { return data_.get(); }

 private:
  static constexpr std::align_val_t kAligned{kAlignment};
  struct Free {
    void operator()(T* p) const noexcept { ::operator delete(p, kAligned); }
  };
  std::unique_ptr<T, Free> data_;
};

/// The product of operands of type T, whatever its size; one object serves all threads.
template <class T, class Arithmetic>
class Product {
 public:
  using Element = typename Arithmetic::Element;

  Product(const View<const T>& a, const View<const T>& b, const AnyView& c) noexcept : a_(a), b_(b), c_(c) {}

  void run(int threads) const {
    const std::int64_t panels = parts(b_.dim(1), kPanelColumns);
    const std::int64_t groups = parts(kTasksAThread * thread_count(threads), panels);
    const std::int64_t task_rows = std::clamp(parts(a_.dim(0), groups), kLeastTaskRows, kMostTaskRows);
    const ScratchSizes sizes(*this, std::min(task_rows, a_.dim(0)));
    const Buffer<std::byte> scratch(sizes.all() * thread_count(threads));
    parallel_for(panels * parts(a_.dim(0), task_rows), threads, [&](std::int64_t index, int thread) {
      compute(part_of(a_.dim(0), task_rows, index / panels), part_of(b_.dim(1), kPanelColumns, index % panels),
              sizes.cut(scratch.data() + thread * sizes.all()));
    });
  }

 private:
  /// What a task works in.
  struct Scratch {
    Element* panel = nullptr;
    Element* rows = nullptr;
    float* sums = nullptr;
  };

  /// Bytes of each part of it, in whole cache lines; parts that the product has no use for are empty.
  class ScratchSizes {
   public:
    ScratchSizes(const Product& product, std::int64_t task_rows) noexcept {
      const std::int64_t inner = product.a_.dim(1);
      const std::int64_t depth = std::min(Arithmetic::padded(inner), Arithmetic::kPanelDepth);
      const bool copies = !std::is_same_v<T, Element> || Arithmetic::padded(inner) != inner;
      const auto bytes = [](std::int64_t count, std::size_t size) {
        constexpr auto kLine = static_cast<std::int64_t>(kAlignment);
        return parts(count * static_cast<std::int64_t>(size), kLine) * kLine;
      };
      panel_ = bytes(depth * kPanelColumns, sizeof(Element));
      rows_ = copies ? bytes(std::min(task_rows, kCopiedRows) * depth, sizeof(Element)) : 0;
      sums_ = product.c_.dtype() == DType::float32 ? 0 : bytes(task_rows * kPanelColumns, sizeof(float));
    }
    [[nodiscard]] std::int64_t all() const noexcept { return panel_ + rows_ + sums_; }
    [[nodiscard]] Scratch cut(std::byte* memory) const noexcept {
      return {reinterpret_cast<Element*>(memory), reinterpret_cast<Element*>(memory + panel_),
              reinterpret_cast<float*>(memory + panel_ + rows_)};
    }

   private:
    std::int64_t panel_;
    std::int64_t rows_;
    std::int64_t sums_;
  };

  void compute(const Range& rows, const Range& columns, const Scratch& scratch) const {
    if (c_.dtype() == DType::float32) {
      const View<float> c = c_.as<float>("matmul c");
      sum(rows, columns, c.at(rows.begin, columns.begin), c.stride(0), scratch);
      return;
    }
    sum(rows, columns, scratch.sums, columns.count, scratch);
    const View<bfloat16> c = c_.as<bfloat16>("matmul c");
    for (std::int64_t r = 0; r < rows.count; ++r) {
      Arithmetic::round(columns.count, scratch.sums + r * columns.count, c.at(rows.begin + r, columns.begin));
    }
  }

  void sum(const Range& rows, const Range& columns, float* sums, std::int64_t ld, const Scratch& scratch) const {
    for (std::int64_t r = 0; r < rows.count; ++r) {
      std::fill_n(sums + r * ld, columns.count, 0.0F);
    }
    for (std::int64_t i = 0; i < parts(a_.dim(1), Arithmetic::kPanelDepth); ++i) {
      const Range depth = part_of(a_.dim(1), Arithmetic::kPanelDepth, i);
      Arithmetic::pack(b_, depth.begin, depth.count, columns.begin, columns.count, scratch.panel);
      add(rows, depth, scratch, columns.count, sums, ld);
    }
  }

  /// sums += rows of a times the panel.
  void add(const Range& rows, const Range& depth, const Scratch& scratch, std::int64_t columns, float* sums,
           std::int64_t ld) const {
    const std::int64_t padded = Arithmetic::padded(depth.count);
    if constexpr (std::is_same_v<T, Element>) {
      if (padded == depth.count) {
        Arithmetic::add_products(rows.count, columns, depth.count, a_.at(rows.begin, depth.begin), a_.stride(0),
                                 scratch.panel, sums, ld);
        return;
      }
    }
    for (std::int64_t i = 0; i < parts(rows.count, kCopiedRows); ++i) {
      const Range some = part_of(rows.count, kCopiedRows, i);
      for (std::int64_t r = 0; r < some.count; ++r) {
        const T* values = a_.at(rows.begin + some.begin + r, depth.begin);
        Element* row = scratch.rows + r * padded;
        std::transform(values, values + depth.count, row, [](T value) { return static_cast<Element>(value); });
        std::fill(row + depth.count, row + padded, Element(0.0F));
      }
      Arithmetic::add_products(some.count, columns, depth.count, scratch.rows, padded, scratch.panel,
                               sums + some.begin * ld, ld);
    }
  }

  View<const T> a_;
  View<const T> b_;
  AnyView c_;
};

template <class Void>
void expect_matrix(std::string_view name, const BasicAnyView<Void>& m, bool transposable) {
  if (m.dtype() != DType::float32 && m.dtype() != DType::bfloat16) {
    throw Error(std::string(name), "float32 or bfloat16", std::string(name_of(m.dtype())));
  }
  if (m.stride(1) != 1 && !(transposable && m.stride(0) == 1)) {
    throw Error(std::string(name), transposable ? "a matrix with one unit stride" : "contiguous rows",
                fmt::format("strides [{}, {}]", m.stride(0), m.stride(1)));
  }
}

}  // namespace

void matmul(ConstAnyView a, ConstAnyView b, AnyView c, int threads) {
  a.expect("matmul a", {-1, -1});
  b.expect("matmul b", {a.dim(1), -1});
  c.expect("matmul c", {a.dim(0), b.dim(1)});
  expect_matrix("matmul a", a, /*transposable=*/false);
  expect_matrix("matmul b", b, /*transposable=*/true);
  expect_matrix("matmul c", c, /*transposable=*/false);
  expect_dtype("matmul b", a.dtype(), b.dtype());
  if (c.dim(0) == 0 || c.dim(1) == 0) {
    return;
  }
  if (a.dtype() == DType::float32) {
    Product<float, FloatArithmetic>(a.as<float>(), b.as<float>(), c).run(threads);
  } else if (has_bf16_products()) {
    Product<bfloat16, PairArithmetic>(a.as<bfloat16>(), b.as<bfloat16>(), c).run(threads);
  } else {
    Product<bfloat16, FloatArithmetic>(a.as<bfloat16>(), b.as<bfloat16>(), c).run(threads);
  }
}

}  // namespace headrace::device
