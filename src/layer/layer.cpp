// SPDX-License-Identifier: Apache-2.0
#include "headrace/layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "device/matmul.h"
#include "headrace/error.h"
#include "layer/norm.h"
#include "layer/rope.h"
#include "layer/weight_specs.h"

namespace headrace {
namespace {

using device::matmul;

/// out = x times a checkpoint's weight, which has one row an output.
void linear(ConstAnyView x, ConstAnyView weight, AnyView out, int threads) {
  matmul(x, weight.transposed(), out, threads);
}

/// The same memory as [T, everything else].
AnyView flat(Tensor& tensor) {
  std::int64_t columns = 1;
  for (int i = 1; i < tensor.rank(); ++i) {
    columns *= tensor.dim(i);
  }
  return AnyView(tensor.data(), tensor.dtype(), 2, {tensor.dim(0), columns}, {columns, 1});
}

/// Dims [begin, end) of each head of a tensor [T, heads, D], or of each row of one [T, D] as if it were one head.
AnyView head_dims(Tensor& tensor, std::int64_t begin, std::int64_t end) {
  const std::int64_t heads = tensor.rank() == 3 ? tensor.dim(1) : 1;
  const std::int64_t dim = tensor.dim(tensor.rank() - 1);
  return AnyView(tensor.data() + begin * size_of(tensor.dtype()), tensor.dtype(), 3,
                 {tensor.dim(0), heads, end - begin}, {heads * dim, dim, 1});
}

/// One step's projections: the inputs that all of them share.
class Projection {
 public:
  Projection(const ModelConfig& config, const LayerWeights& weights, DType compute, int threads, ConstAnyView hidden,
             View<const std::int32_t> positions)
      : config_(config),
        weights_(weights),
        compute_(compute),
        threads_(threads),
        hidden_(hidden),
        tokens_(hidden.dim(0)),
        rope_(config.rope, positions, threads) {}

  /// The latent, the rope key and the indexer's key and gate.
  void keys(Projected& out) const {
    const Geometry& g = config_.geometry;
    const ConstAnyView kv_a = weights_.kv_a_proj_with_mqa.view();
    out.latent = Tensor(compute_, {tokens_, g.kv_lora_rank});
    linear(hidden_, kv_a.slice(0, g.kv_lora_rank), out.latent.view(), threads_);
    layer::rms_norm(out.latent.view(), weights_.kv_a_norm.view_as<float>(), config_.kv_a_norm_epsilon, threads_);
    if (g.qk_rope_head_dim > 0) {
      out.rope_key = Tensor(compute_, {tokens_, g.qk_rope_head_dim});
      linear(hidden_, kv_a.slice(g.kv_lora_rank, g.latent_dim()), out.rope_key.view(), threads_);
      rope_.rotate(head_dims(out.rope_key, 0, g.qk_rope_head_dim), config_.rope.interleave, threads_);
    }
    if (weights_.indexer) {
      index_keys(*weights_.indexer, *config_.indexer, out);
    }
  }

  /// The queries, and with `scoring` what the indexer asks with.
  void queries(bool scoring, Projected& out) const {
    const Geometry& g = config_.geometry;
    out.q = Tensor(compute_, {tokens_, g.num_heads, g.qk_head_dim()});
    if (config_.q_lora_rank) {
      Tensor low_rank(compute_, {tokens_, *config_.q_lora_rank});
      linear(hidden_, weights_.q_a_proj.view(), low_rank.view(), threads_);
      layer::rms_norm(low_rank.view(), weights_.q_a_norm.view_as<float>(), config_.q_a_norm_epsilon, threads_);
      linear(low_rank.view(), weights_.q_b_proj.view(), flat(out.q), threads_);
      if (scoring && weights_.indexer) {
        index_queries(*weights_.indexer, *config_.indexer, low_rank.view(), out);
      }
    } else {
      linear(hidden_, weights_.q_proj.view(), flat(out.q), threads_);
    }
    if (g.qk_rope_head_dim > 0) {
      rope_.rotate(head_dims(out.q, g.qk_nope_head_dim, g.qk_head_dim()), config_.rope.interleave, threads_);
    }
  }

 private:
  void index_keys(const IndexerWeights& weights, const IndexerGeometry& indexer, Projected& out) const {
    out.index_key = Tensor(compute_, {tokens_, indexer.head_dim});
    linear(hidden_, weights.wk.view(), out.index_key.view(), threads_);
    layer::layer_norm(out.index_key.view(), weights.k_norm_weight.view_as<float>(),
                      weights.k_norm_bias.view_as<float>(), indexer.key_norm_epsilon, threads_);
    if (indexer.rope_dim > 0) {
      rope_.rotate(head_dims(out.index_key, 0, indexer.rope_dim), indexer.rope_interleave, threads_);
    }
    if (indexer.kpool) {
      out.index_gate = Tensor(compute_, {tokens_, indexer.head_dim});
      linear(hidden_, weights.gate.view(), out.index_gate.view(), threads_);
    }
  }

  void index_queries(const IndexerWeights& weights, const IndexerGeometry& indexer, ConstAnyView low_rank,
                     Projected& out) const {
    out.index_query = Tensor(compute_, {tokens_, indexer.num_heads, indexer.head_dim});
    linear(low_rank, weights.wq_b.view(), flat(out.index_query), threads_);
    if (indexer.rope_dim > 0) {
      rope_.rotate(head_dims(out.index_query, 0, indexer.rope_dim), indexer.rope_interleave, threads_);
    }
    out.index_weight = Tensor(DType::float32, {tokens_, indexer.num_heads});
    linear(hidden_, weights.weights_proj.view(), out.index_weight.view(), threads_);
    const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(indexer.num_heads * indexer.head_dim)));
    float* weight = out.index_weight.view_as<float>().data();
    for (std::int64_t i = 0; i < tokens_ * indexer.num_heads; ++i) {
      weight[i] *= factor;
    }
  }

  const ModelConfig& config_;
  const LayerWeights& weights_;
  DType compute_;
  int threads_;
  ConstAnyView hidden_;
  std::int64_t tokens_;
  layer::RopeTable rope_;
};

void check_step(const ModelConfig& config, DType compute, const ConstAnyView& hidden,
                const View<const std::int32_t>& positions) {
  hidden.expect("hidden", {-1, config.hidden_size});
  expect_dtype("hidden", compute, hidden.dtype());
  positions.expect("positions", {hidden.dim(0)});
}

bool needs_selection(const Plan& plan) {
  return std::any_of(plan.requests().begin(), plan.requests().end(),
                     [](const RequestPlan& request) { return !request.skip_scoring; });
}

}  // namespace

Selection SelectionBuffer::selection() const {
  if (index.empty()) {
    return {};
  }
  return {index.view_as<std::int32_t>(), count.view_as<std::int32_t>()};
}

Layer::Layer(ModelConfig config, std::int64_t layer, LayerWeights weights, DType compute, int threads)
    : config_(std::move(config)), layer_(layer), weights_(std::move(weights)), compute_(compute), threads_(threads) {
  if (compute != DType::float32 && compute != DType::bfloat16) {
    throw Error("compute", "float32 or bfloat16", std::string(name_of(compute)));
  }
  config_.geometry.validate();
  layer::check_weights(config_, layer_, compute_, weights_);
}

Weights Layer::attention_weights() const {
  Weights result;
  result.kv_b_proj = weights_.kv_b_proj.view();
  if (!weights_.sink.empty()) {
    result.sink = weights_.sink.view_as<float>();
  }
  return result;
}

Attention Layer::attention(CacheFormat format) const {
  return {config_.geometry, config_.selection_rule(layer_), config_.softmax_scale, compute_, format};
}

Projected Layer::project(ConstAnyView hidden, View<const std::int32_t> positions, bool scoring) const {
  check_step(config_, compute_, hidden, positions);
  const Projection projection(config_, weights_, compute_, threads_, hidden, positions);
  Projected result;
  projection.keys(result);
  projection.queries(scoring, result);
  return result;
}

Projected Layer::project_keys(ConstAnyView hidden, View<const std::int32_t> positions) const {
  check_step(config_, compute_, hidden, positions);
  Projected result;
  Projection(config_, weights_, compute_, threads_, hidden, positions).keys(result);
  return result;
}

void Layer::append(const Projected& projected, const LayerCaches& caches, CacheFormat format, const Requests& requests,
                   View<const std::int64_t> slot_mapping) const {
  headrace::append(config_.geometry, format, caches.latent, projected.latent.view(), projected.rope_key.view(),
                   slot_mapping, threads_);
  if (scores()) {
    const Tensor& bias = weights_.indexer->offset_bias;
    append_index_keys(*config_.indexer, compute_, caches.index, projected.index_key.view(), projected.index_gate.view(),
                      bias.empty() ? View<const float>{} : bias.view_as<float>(), requests, slot_mapping, threads_);
  }
}

SelectionBuffer Layer::select(const Plan& plan, const Projected& projected, const CacheView& index_cache,
                              const Requests& requests, std::int64_t workspace_bytes) const {
  if (!needs_selection(plan)) {
    return {};
  }
  if (!scores()) {
    throw Error(fmt::format("selection of layer {}", layer_),
                fmt::format("the one of layer {}, for this layer has no indexer", config_.selection_source(layer_)),
                "none");
  }
  if (projected.index_query.empty()) {
    throw Error("projected", "index queries, for some rows read the selection", "none");
  }
  std::vector<std::int64_t> scoring_begin;
  for (const RequestPlan& request : plan.requests()) {
    scoring_begin.push_back(request.skip_scoring ? std::numeric_limits<std::int64_t>::max() : request.scoring_begin);
  }
  const std::int64_t tokens = projected.index_query.dim(0);
  SelectionBuffer result;
  result.index = Tensor(DType::int32, {tokens, config_.indexer->rule().width()});
  result.count = Tensor(DType::int32, {tokens});
  headrace::select(
      *config_.indexer, compute_, index_cache, {projected.index_query.view(), projected.index_weight.view_as<float>()},
      requests, View<const std::int64_t>(scoring_begin.data(), {static_cast<std::int64_t>(scoring_begin.size())}),
      result.index.view_as<std::int32_t>(), result.count.view_as<std::int32_t>(), workspace_bytes, threads_);
  return result;
}

Tensor Layer::output(ConstAnyView attended) const {
  const Geometry& g = config_.geometry;
  attended.expect("attended", {-1, g.num_heads, g.v_head_dim});
  expect_dtype("attended", compute_, attended.dtype());
  if (attended.stride(2) != 1 || attended.stride(1) != g.v_head_dim) {
    throw Error("attended", "heads side by side",
                fmt::format("strides [{}, {}, {}]", attended.stride(0), attended.stride(1), attended.stride(2)));
  }
  const ConstAnyView rows(attended.data(), compute_, 2, {attended.dim(0), g.num_heads * g.v_head_dim},
                          {attended.stride(0), 1});
  Tensor result(compute_, {attended.dim(0), config_.hidden_size});
  linear(rows, weights_.o_proj.view(), result.view(), threads_);
  return result;
}

Tensor Layer::forward(const Plan& plan, ConstAnyView hidden, View<const std::int32_t> positions,
                      const LayerCaches& caches, const Requests& requests, View<const std::int64_t> slot_mapping,
                      std::optional<Selection> shared, std::span<std::byte> workspace) const {
  const bool scoring = !shared && needs_selection(plan);
  const Projected projected = project(hidden, positions, scoring);
  append(projected, caches, plan.attention().format, requests, slot_mapping);
  SelectionBuffer own;
  if (scoring) {
    own = select(plan, projected, caches.index, requests, static_cast<std::int64_t>(workspace.size()));
  }
  const Geometry& g = config_.geometry;
  Tensor attended(compute_, {hidden.dim(0), g.num_heads, g.v_head_dim});
  const Inputs inputs{projected.q.view(), caches.latent, requests, shared.value_or(own.selection())};
  attend(plan, attention_weights(), inputs, {attended.view(), {}}, workspace);
  return output(attended.view());
}

}  // namespace headrace
