// SPDX-License-Identifier: Apache-2.0
#include "device/matmul.h"

#include <fmt/format.h>
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "device/parallel.h"
#include "headrace/error.h"

namespace headrace::device {
namespace {

using dnnl::memory;

/// oneDNN takes its thread count from the calling thread's OpenMP setting; this puts the old one back.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(thread_count(threads)); }
  ~ThreadCount() { omp_set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

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

void run(const dnnl::engine& engine, const dnnl::matmul::primitive_desc& desc, const ConstAnyView& a,
         const ConstAnyView& b, const AnyView& c) {
  dnnl::stream stream(engine);
  // oneDNN's handles are not const; it only reads the sources.
  memory source(desc.src_desc(), engine, const_cast<void*>(a.data()));
  memory weights(desc.weights_desc(), engine, const_cast<void*>(b.data()));
  memory destination(desc.dst_desc(), engine, c.data());
  dnnl::matmul(desc).execute(stream,
                             {{DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, destination}});
  stream.wait();
}

}  // namespace

void matmul(ConstAnyView a, ConstAnyView b, AnyView c, int threads) {
  a.expect("matmul a", {-1, -1});
  b.expect("matmul b", {a.dim(1), -1});
  c.expect("matmul c", {a.dim(0), b.dim(1)});
  expect_dtype("matmul b", a.dtype(), b.dtype());
  if (c.dim(0) == 0 || c.dim(1) == 0) {
    return;
  }
  if (a.dim(1) == 0) {
    throw Error("matmul a", "at least one column", "0");
  }
  const ThreadCount scoped(threads);
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  try {
    const dnnl::matmul::desc operation(describe("matmul a", a), describe("matmul b", b), describe("matmul c", c));
    const dnnl::matmul::primitive_desc desc(operation, engine, true);
    if (desc) {
      run(engine, desc, a, b, c);
      return;
    }
    if (a.dtype() == DType::float32) {
      throw Error("matmul", "a float32 product that this oneDNN can do", "none");
    }
    Dims a_stride{};
    Dims b_stride{};
    const std::vector<float> a32 = widen(a, a_stride);
    const std::vector<float> b32 = widen(b, b_stride);
    std::vector<float> c32;
    AnyView target = c;
    if (c.dtype() == DType::bfloat16) {
      c32.resize(static_cast<std::size_t>(c.dim(0) * c.dim(1)));
      target = View<float>(c32.data(), {c.dim(0), c.dim(1)});
    }
    matmul(View<const float>(a32.data(), 2, a.shape(), a_stride), View<const float>(b32.data(), 2, b.shape(), b_stride),
           target, threads);
    if (c.dtype() == DType::bfloat16) {
      const auto out = c.as<bfloat16>("matmul c");
      for (std::int64_t i = 0; i < c.dim(0); ++i) {
        for (std::int64_t j = 0; j < c.dim(1); ++j) {
          out(i, j) = bfloat16(c32[static_cast<std::size_t>(i * c.dim(1) + j)]);
        }
      }
    }
  } catch (const dnnl::error& error) {
    throw Error("matmul", "a product that oneDNN can run",
                fmt::format("{} (status {}) for [{}, {}] x [{}, {}]", error.what(), static_cast<int>(error.status),
                            a.dim(0), a.dim(1), b.dim(0), b.dim(1)));
  }
}

}  // namespace headrace::device
