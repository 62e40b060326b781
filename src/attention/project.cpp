// SPDX-License-Identifier: Apache-2.0
#include "attention/project.h"

#include <algorithm>

#include "attention/row_values.h"
#include "device/matmul.h"
#include "device/parallel.h"

namespace headrace::attention {
namespace {

/// Head h of a [n, H, d] view: its first columns as a matrix.
template <class Void>
BasicAnyView<Void> head_matrix(const BasicAnyView<Void>& view, std::int64_t head, std::int64_t columns) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  auto* data = static_cast<Byte*>(view.data()) + head * view.stride(1) * size_of(view.dtype());
  return BasicAnyView<Void>(data, view.dtype(), 2, {view.dim(0), columns}, {view.stride(0), view.stride(2)});
}

}  // namespace

void up_project(DType compute, ConstAnyView latent, ConstAnyView kv_b_proj, AnyView up, int threads) {
  const std::int64_t rows = up.dim(0);
  const std::int64_t columns = up.dim(1) * up.dim(2);
  const AnyView matrix(up.data(), up.dtype(), 2, {rows, columns}, {columns, 1});
  device::matmul(latent, kv_b_proj.transposed(), matrix, threads);
  if (compute != up.dtype()) {
    const View<float> values = matrix.as<float>("up");
    device::parallel_for(rows, threads, [&](std::int64_t r, int) { round_to(compute, columns, values.at(r)); });
  }
}

void absorb_query(const Geometry& geometry, ConstAnyView q, ConstAnyView kv_b_proj, AnyView query, int threads) {
  const std::int64_t head_rows = geometry.qk_nope_head_dim + geometry.v_head_dim;
  device::parallel_for(geometry.num_heads, threads, [&](std::int64_t h, int) {
    const ConstAnyView w_uk = kv_b_proj.slice(h * head_rows, h * head_rows + geometry.qk_nope_head_dim);
    device::matmul(head_matrix(q, h, geometry.qk_nope_head_dim), w_uk, head_matrix(query, h, geometry.kv_lora_rank), 1);
    for (std::int64_t t = 0; t < q.dim(0) && geometry.qk_rope_head_dim != 0; ++t) {
      const std::int64_t rope_at = t * query.stride(0) + h * query.stride(1) + geometry.kv_lora_rank;
      if (query.dtype() == DType::float32) {
        load_values(q, t, h, geometry.qk_nope_head_dim, geometry.qk_rope_head_dim,
                    static_cast<float*>(query.data()) + rope_at);
      } else {
        load_values(q, t, h, geometry.qk_nope_head_dim, geometry.qk_rope_head_dim,
                    static_cast<bfloat16*>(query.data()) + rope_at);
      }
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
