// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "attention/project_cuda.h"
#include "headrace/error.h"

namespace headrace::attention::cuda {
namespace {

using device::cuda::ProductShape;

std::int64_t head_rows(const Geometry& g) { return g.qk_nope_head_dim + g.v_head_dim; }

ProductShape up_shape(const Geometry& g) {
  return {.columns = g.num_heads * head_rows(g), .inner = g.kv_lora_rank, .b_transposed = true, .split_sums = false};
}

ProductShape absorb_shape(const Geometry& g) {
  return {.columns = g.kv_lora_rank, .inner = g.qk_nope_head_dim, .batch = g.num_heads, .split_sums = false};
}

ProductShape values_shape(const Geometry& g, DType out) {
  return {.columns = g.v_head_dim,
          .inner = g.kv_lora_rank,
          .batch = g.num_heads,
          .b_transposed = true,
          .out = out,
          .split_sums = false};
}

/// The first `columns` of every head's row. AnyView or View.
template <class AView>
AView first_columns(const char* name, const AView& view, std::int64_t heads, std::int64_t columns) {
  view.expect(name, {-1, heads, -1});
  if (view.dim(2) < columns) {
    throw Error(name, "at least " + std::to_string(columns) + " columns", std::to_string(view.dim(2)));
  }
  return AView(view.data(), 3, {view.dim(0), heads, columns}, view.strides());
}

/// Rows [begin, end) of every head's part of kv_b_proj.
View<const bfloat16> head_weights(const Geometry& g, View<const bfloat16> kv_b_proj, std::int64_t begin,
                                  std::int64_t end) {
  kv_b_proj.expect("kv_b_proj", {g.num_heads * head_rows(g), g.kv_lora_rank});
  const std::int64_t row = kv_b_proj.stride(0);
  return {kv_b_proj.at(begin),
          3,
          {g.num_heads, end - begin, g.kv_lora_rank},
          {head_rows(g) * row, row, kv_b_proj.stride(1)}};
}

}  // namespace

Projections::Projections(const device::cuda::ProductLibrary& library, const Geometry& geometry)
    : geometry_(geometry),
      up_(library, up_shape(geometry)),
      absorb_(library, absorb_shape(geometry)),
      values_bfloat16_(library, values_shape(geometry, DType::bfloat16)),
      values_float32_(library, values_shape(geometry, DType::float32)) {}

void Projections::warm_up(Stream stream) const {
  up_.warm_up(stream);
  absorb_.warm_up(stream);
  values_bfloat16_.warm_up(stream);
  values_float32_.warm_up(stream);
}

std::int64_t Projections::workspace_bytes() const noexcept {
  return std::max({up_.workspace_bytes(), absorb_.workspace_bytes(), values_bfloat16_.workspace_bytes(),
                   values_float32_.workspace_bytes()});
}

void Projections::up_project(View<const bfloat16> latent, View<const bfloat16> kv_b_proj, View<bfloat16> up,
                             std::span<std::byte> workspace, Stream stream) const {
  const std::int64_t rank = geometry_.kv_lora_rank;
  const std::int64_t rows = geometry_.num_heads * head_rows(geometry_);
  latent.expect("latent", {-1, rank});
  kv_b_proj.expect("kv_b_proj", {rows, rank});
  up.expect("up", {latent.dim(0), geometry_.num_heads, head_rows(geometry_)});
  if (up.stride(1) != head_rows(geometry_)) {
    throw Error("up", "contiguous heads", "heads " + std::to_string(up.stride(1)) + " apart");
  }
  up_.run(View<const bfloat16>(latent.data(), 3, {latent.dim(0), 1, rank}, {latent.stride(0), 0, latent.stride(1)}),
          View<const bfloat16>(kv_b_proj.data(), 3, {1, rows, rank}, {0, kv_b_proj.stride(0), kv_b_proj.stride(1)}),
          View<bfloat16>(up.data(), 3, {up.dim(0), 1, rows}, {up.stride(0), 0, up.stride(2)}), workspace, stream);
}

void Projections::absorb_query(View<const bfloat16> q, View<const bfloat16> kv_b_proj, View<bfloat16> query,
                               std::span<std::byte> workspace, Stream stream) const {
  const Geometry& g = geometry_;
  absorb_.run(first_columns("q", q, g.num_heads, g.qk_nope_head_dim), head_weights(g, kv_b_proj, 0, g.qk_nope_head_dim),
              first_columns("query", query, g.num_heads, g.kv_lora_rank), workspace, stream);
}

void Projections::project_values(View<const bfloat16> attended, View<const bfloat16> kv_b_proj, AnyView out,
                                 std::span<std::byte> workspace, Stream stream) const {
  const Geometry& g = geometry_;
  const device::cuda::Product& product = out.dtype() == DType::float32 ? values_float32_ : values_bfloat16_;
  product.run(first_columns("attended", attended, g.num_heads, g.kv_lora_rank),
              head_weights(g, kv_b_proj, g.qk_nope_head_dim, head_rows(g)), out, workspace, stream);
}

}  // namespace headrace::attention::cuda
