// SPDX-License-Identifier: Apache-2.0
#include "device/matmul.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "device/parallel.h"
#include "headrace/error.h"

namespace headrace::device {
namespace {

using dnnl::memory;

/// Products are cut into blocks of this size, each computed by one thread: which bits come out then does not depend on
/// the number of threads. Long enough for oneDNN's packing of the operands to be small beside the product.
constexpr std::int64_t kBlockRows = 256;
constexpr std::int64_t kBlockColumns = 512;

/// oneDNN takes its thread count from the calling thread's OpenMP setting; this puts the old one back.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

memory::data_type type_of(DType dtype) {
  return dtype == DType::float32 ? memory::data_type::f32 : memory::data_type::bf16;
}

template <class Void>
memory::desc describe(std::string_view name, const BasicAnyView<Void>& m) {
  if (m.dtype() != DType::float32 && m.dtype() != DType::bfloat16) {
    throw Error(std::string(name), "float32 or bfloat16", std::string(name_of(m.dtype())));
  }
  if (m.stride(0) != 1 && m.stride(1) != 1) {
    throw Error(std::string(name), "a matrix with one unit stride",
                fmt::format("strides [{}, {}]", m.stride(0), m.stride(1)));
  }
  return memory::desc({m.dim(0), m.dim(1)}, type_of(m.dtype()), {m.stride(0), m.stride(1)});
}

/// A float32 copy of a bfloat16 matrix with the same strides' order, for machines whose oneDNN has no bf16 product.
std::vector<float> widen(const ConstAnyView& m, Dims& stride) {
  const auto source = m.as<bfloat16>("matmul operand");
  const bool row_major = m.stride(1) == 1;
  stride = row_major ? Dims{m.dim(1), 1} : Dims{1, m.dim(0)};
  std::vector<float> copy(static_cast<std::size_t>(m.dim(0) * m.dim(1)));
  for (std::int64_t i = 0; i < m.dim(0); ++i) {
    for (std::int64_t j = 0; j < m.dim(1); ++j) {
      copy[static_cast<std::size_t>(i * stride[0] + j * stride[1])] = static_cast<float>(source(i, j));
    }
  }
  return copy;
}

/// Rows [row, row + rows) and columns [column, column + columns).
template <class Void>
BasicAnyView<Void> block_of(const BasicAnyView<Void>& m, std::int64_t row, std::int64_t rows, std::int64_t column,
                            std::int64_t columns) {
  const BasicAnyView<Void> some = m.slice(row, row + rows).transposed();
  return some.slice(column, column + columns).transposed();
}

/// oneDNN's handles are not const, but it only reads the sources.
void* read_only(const ConstAnyView& m) {
  return const_cast<void*>(m.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

/// An empty description when this oneDNN has no such product. oneDNN 3 dropped the operation descriptors of oneDNN 2.
dnnl::matmul::primitive_desc describe_product(const memory::desc& a, const memory::desc& b, const memory::desc& c) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), a, b, c, dnnl::primitive_attr(), true};
#else
  return {dnnl::matmul::desc(a, b, c), engine(), true};
#endif
}

/// c = a b on the calling thread; false when this oneDNN has no such product.
bool multiply(const ConstAnyView& a, const ConstAnyView& b, const AnyView& c) {
  const OneThread scoped;
  const dnnl::matmul::primitive_desc desc =
      describe_product(describe("matmul a", a), describe("matmul b", b), describe("matmul c", c));
  if (!desc) {
    return false;
  }
  dnnl::stream stream(engine());
  memory source(desc.src_desc(), engine(), read_only(a));
  memory weights(desc.weights_desc(), engine(), read_only(b));
  memory destination(desc.dst_desc(), engine(), c.data());
  dnnl::matmul(desc).execute(stream,
                             {{DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, destination}});
  stream.wait();
  return true;
}

/// The same for bfloat16 operands through float32 ones; the products are exact in both, so only time differs.
void multiply_widened(const ConstAnyView& a, const ConstAnyView& b, const AnyView& c) {
  Dims a_stride{};
  Dims b_stride{};
  const std::vector<float> a32 = widen(a, a_stride);
  const std::vector<float> b32 = widen(b, b_stride);
  std::vector<float> c32(static_cast<std::size_t>(c.dim(0) * c.dim(1)));
  const View<float> target(c32.data(), {c.dim(0), c.dim(1)});
  if (!multiply(View<const float>(a32.data(), 2, a.shape(), a_stride),
                View<const float>(b32.data(), 2, b.shape(), b_stride), target)) {
    throw Error("matmul", "a float32 product that this oneDNN can do", "none");
  }
  for (std::int64_t i = 0; i < c.dim(0); ++i) {
    for (std::int64_t j = 0; j < c.dim(1); ++j) {
      if (c.dtype() == DType::float32) {
        c.as<float>("matmul c")(i, j) = target(i, j);
      } else {
        c.as<bfloat16>("matmul c")(i, j) = bfloat16(target(i, j));
      }
    }
  }
}

}  // namespace

void matmul(ConstAnyView a, ConstAnyView b, AnyView c, int threads) {
  a.expect("matmul a", {-1, -1});
  b.expect("matmul b", {a.dim(1), -1});
  c.expect("matmul c", {a.dim(0), b.dim(1)});
  expect_dtype("matmul b", a.dtype(), b.dtype());
  const std::int64_t rows = c.dim(0);
  const std::int64_t columns = c.dim(1);
  const std::int64_t inner = a.dim(1);
  if (rows == 0 || columns == 0) {
    return;
  }
  if (inner == 0) {
    throw Error("matmul a", "at least one column", "0");
  }
  const std::int64_t row_blocks = (rows + kBlockRows - 1) / kBlockRows;
  const std::int64_t column_blocks = (columns + kBlockColumns - 1) / kBlockColumns;
  parallel_for(row_blocks * column_blocks, threads, [&](std::int64_t index, int) {
    const std::int64_t row = index % row_blocks * kBlockRows;
    const std::int64_t column = index / row_blocks * kBlockColumns;
    const std::int64_t m = std::min(kBlockRows, rows - row);
    const std::int64_t n = std::min(kBlockColumns, columns - column);
    const ConstAnyView a_block = a.slice(row, row + m);
    const ConstAnyView b_block = block_of(b, 0, inner, column, n);
    const AnyView c_block = block_of(c, row, m, column, n);
    try {
      if (multiply(a_block, b_block, c_block)) {
        return;
      }
    } catch (const dnnl::error& error) {
      throw Error("matmul", "a product that oneDNN can run",
                  fmt::format("{} (status {}) for [{}, {}] x [{}, {}]", error.what(), static_cast<int>(error.status), m,
                              inner, inner, n));
    }
    if (a.dtype() == DType::float32) {
      throw Error("matmul", "a float32 product that this oneDNN can do", "none");
    }
    multiply_widened(a_block, b_block, c_block);
  });
}

}  // namespace headrace::device
