// SPDX-License-Identifier: Apache-2.0
#include "attention/project.h"

#include <algorithm>

#include "attention/load_floats.h"
#include "device/matmul.h"
#include "device/parallel.h"

namespace headrace::attention {
namespace {

/// Head h of a [n, H, d] view: columns [from, from + d) as a matrix.
template <class Void>
BasicAnyView<Void> head_matrix(const BasicAnyView<Void>& view, std::int64_t head, std::int64_t columns) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  auto* data = static_cast<Byte*>(view.data()) + head * view.stride(1) * size_of(view.dtype());
  return BasicAnyView<Void>(data, view.dtype(), 2, {view.dim(0), columns}, {view.stride(0), view.stride(2)});
}

}  // namespace

void up_project(DType compute, ConstAnyView latent, ConstAnyView kv_b_proj, View<float> up, int threads) {
  const std::int64_t rows = up.dim(0);
  const std::int64_t columns = up.dim(1) * up.dim(2);
  device::matmul(latent, kv_b_proj.transposed(), View<float>(up.data(), {rows, columns}), threads);
  if (compute != DType::float32) {
    device::parallel_for(rows, threads, [&](std::int64_t r, int) { round_to(compute, columns, up.at(r)); });
  }
}

void absorb_query(const Geometry& geometry, ConstAnyView q, ConstAnyView kv_b_proj, View<float> query, int threads) {
  const std::int64_t head_rows = geometry.qk_nope_head_dim + geometry.v_head_dim;
  device::parallel_for(geometry.num_heads, threads, [&](std::int64_t h, int) {
    const ConstAnyView w_uk = kv_b_proj.slice(h * head_rows, h * head_rows + geometry.qk_nope_head_dim);
    device::matmul(head_matrix(q, h, geometry.qk_nope_head_dim), w_uk,
                   head_matrix(AnyView(query), h, geometry.kv_lora_rank), 1);
  });
  if (geometry.qk_rope_head_dim == 0) {
    return;
  }
  const auto* rope = static_cast<const std::byte*>(q.data()) + geometry.qk_nope_head_dim * size_of(q.dtype());
  const ConstAnyView q_rope(rope, q.dtype(), 3, q.shape(), q.strides());
  device::parallel_for(q.dim(0), threads, [&](std::int64_t t, int) {
    for (std::int64_t h = 0; h < geometry.num_heads; ++h) {
      load_floats(q_rope, t, h, geometry.qk_rope_head_dim, query.at(t, h) + geometry.kv_lora_rank);
    }
  });
}

void project_values(const Geometry& geometry, ConstAnyView attended, ConstAnyView kv_b_proj, AnyView out, int threads) {
  const std::int64_t head_rows = geometry.qk_nope_head_dim + geometry.v_head_dim;
  device::parallel_for(geometry.num_heads, threads, [&](std::int64_t h, int) {
    const ConstAnyView w_uv = kv_b_proj.slice(h * head_rows + geometry.qk_nope_head_dim, (h + 1) * head_rows);
    device::matmul(head_matrix(attended, h, geometry.kv_lora_rank), w_uv.transposed(),
                   head_matrix(out, h, geometry.v_head_dim), 1);
  });
}

}  // namespace headrace::attention
