// SPDX-License-Identifier: Apache-2.0
#include "onednn_product.h"

#include <omp.h>

#include <chrono>
#include <oneapi/dnnl/dnnl.hpp>

#include "device/parallel.h"
#include "headrace/tensor.h"
#include "layer/random.h"

namespace headrace::app {

struct OneDnnProduct::Memory {
  Tensor a;
  Tensor b;
  Tensor c;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul product;
  dnnl::memory source;
  dnnl::memory weights;
  dnnl::memory destination;
};

OneDnnProduct::OneDnnProduct(DType dtype, std::int64_t n, int threads)
    : n_(n), threads_(device::thread_count(threads)), memory_(std::make_unique<Memory>()) {
  Memory& m = *memory_;
  m.a = Tensor(dtype, {n, n});
  m.b = Tensor(dtype, {n, n});
  m.c = Tensor(dtype, {n, n});
  layer::fill_normal(m.a.view(), 0, 0, 1.0, threads_);
  layer::fill_normal(m.b.view(), 0, 1, 1.0, threads_);
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads_);
  const auto type = dtype == DType::float32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
  const dnnl::memory::desc matrix({n, n}, type, dnnl::memory::format_tag::ab);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(m.engine, matrix, matrix, matrix);
#else
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(matrix, matrix, matrix), m.engine);
#endif
  m.product = dnnl::matmul(description);
  m.source = dnnl::memory(matrix, m.engine, m.a.data());
  m.weights = dnnl::memory(matrix, m.engine, m.b.data());
  m.destination = dnnl::memory(matrix, m.engine, m.c.data());
  omp_set_num_threads(before);
}

OneDnnProduct::~OneDnnProduct() = default;

double OneDnnProduct::run_ms() {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads_);
  const auto start = std::chrono::steady_clock::now();
  memory_->product.execute(
      memory_->stream,
      {{DNNL_ARG_SRC, memory_->source}, {DNNL_ARG_WEIGHTS, memory_->weights}, {DNNL_ARG_DST, memory_->destination}});
  memory_->stream.wait();
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  omp_set_num_threads(before);
  return ms;
}

double OneDnnProduct::flops() const noexcept {
  const auto n = static_cast<double>(n_);
  return 2.0 * n * n * n;
}

}  // namespace headrace::app
