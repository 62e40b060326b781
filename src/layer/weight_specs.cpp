// SPDX-License-Identifier: Apache-2.0
#include "layer/weight_specs.h"

#include <fmt/format.h>

#include <string>

#include "headrace/error.h"

namespace headrace::layer {
namespace {

/// Collects specs under one struct of weights.
template <class Struct>
class Specs {
 public:
  Specs(std::vector<WeightSpec>& specs, DType compute) : specs_(specs), compute_(compute) {}

  void projection(std::string_view name, Tensor Struct::*member, std::int64_t rows, std::int64_t columns) {
    add(name, member, WeightRole::projection, compute_, rows, columns);
  }
  void norm_scale(std::string_view name, Tensor Struct::*member, std::int64_t size) {
    add(name, member, WeightRole::norm_scale, DType::float32, size, 0);
  }
  void bias(std::string_view name, Tensor Struct::*member, std::int64_t rows, std::int64_t columns = 0) {
    add(name, member, WeightRole::bias, DType::float32, rows, columns);
  }

 private:
  void add(std::string_view name, Tensor Struct::*member, WeightRole role, DType dtype, std::int64_t rows,
           std::int64_t columns) {
    WeightSpec spec{name, role, dtype, rows, columns};
    if constexpr (std::is_same_v<Struct, LayerWeights>) {
      spec.in_layer = member;
    } else {
      spec.in_indexer = member;
    }
    specs_.push_back(spec);
  }

  std::vector<WeightSpec>& specs_;
  DType compute_;
};

void add_indexer(const ModelConfig& config, DType compute, std::vector<WeightSpec>& specs) {
  const IndexerGeometry& indexer = *config.indexer;
  if (!config.q_lora_rank) {
    throw Error("q_lora_rank", "given, for the indexer reads the query's low-rank form", "none");
  }
  Specs<IndexerWeights> add(specs, compute);
  using W = IndexerWeights;
  add.projection("indexer.wq_b", &W::wq_b, indexer.num_heads * indexer.head_dim, *config.q_lora_rank);
  add.projection("indexer.wk", &W::wk, indexer.head_dim, config.hidden_size);
  add.norm_scale("indexer.k_norm.weight", &W::k_norm_weight, indexer.head_dim);
  add.bias("indexer.k_norm.bias", &W::k_norm_bias, indexer.head_dim);
  add.projection("indexer.weights_proj", &W::weights_proj, indexer.num_heads, config.hidden_size);
  if (indexer.kpool) {
    add.bias("indexer.index_kpool_compress_ape", &W::offset_bias, indexer.pool, indexer.head_dim);
    add.projection("indexer.index_kpool_compress_gate", &W::gate, indexer.head_dim, config.hidden_size);
  }
}

}  // namespace

Tensor& WeightSpec::of(LayerWeights& weights) const {
  return in_layer != nullptr ? weights.*in_layer : weights.indexer.value().*in_indexer;
}

const Tensor& WeightSpec::of(const LayerWeights& weights) const {
  return in_layer != nullptr ? weights.*in_layer : weights.indexer.value().*in_indexer;
}

bool has_indexer(const ModelConfig& config, std::int64_t layer) {
  return config.selection_rule(layer).kind() != SelectionRule::Kind::none && config.selection_source(layer) == layer;
}

std::vector<WeightSpec> weight_specs(const ModelConfig& config, std::int64_t layer, DType compute) {
  const bool indexed = has_indexer(config, layer);  // first, for it refuses layers that are not MLA
  const Geometry& g = config.geometry;
  std::vector<WeightSpec> specs;
  Specs<LayerWeights> add(specs, compute);
  using W = LayerWeights;
  if (config.q_lora_rank) {
    add.projection("q_a_proj", &W::q_a_proj, *config.q_lora_rank, config.hidden_size);
    add.norm_scale("q_a_layernorm", &W::q_a_norm, *config.q_lora_rank);
    add.projection("q_b_proj", &W::q_b_proj, g.num_heads * g.qk_head_dim(), *config.q_lora_rank);
  } else {
    add.projection("q_proj", &W::q_proj, g.num_heads * g.qk_head_dim(), config.hidden_size);
  }
  add.projection("kv_a_proj_with_mqa", &W::kv_a_proj_with_mqa, g.latent_dim(), config.hidden_size);
  add.norm_scale("kv_a_layernorm", &W::kv_a_norm, g.kv_lora_rank);
  add.projection("kv_b_proj", &W::kv_b_proj, g.num_heads * (g.qk_nope_head_dim + g.v_head_dim), g.kv_lora_rank);
  add.projection("o_proj", &W::o_proj, config.hidden_size, g.num_heads * g.v_head_dim);
  if (indexed) {
    add_indexer(config, compute, specs);
  }
  return specs;
}

void check_weights(const ModelConfig& config, std::int64_t layer, DType compute, const LayerWeights& weights) {
  const std::vector<WeightSpec> specs = weight_specs(config, layer, compute);
  if (weights.indexer.has_value() != has_indexer(config, layer)) {
    throw Error(fmt::format("indexer weights of layer {}", layer), has_indexer(config, layer) ? "present" : "absent",
                weights.indexer ? "present" : "absent");
  }
  for (const WeightSpec& spec : specs) {
    const Tensor& tensor = spec.of(weights);
    if (tensor.empty()) {
      throw Error(std::string(spec.name), "a tensor", "none");
    }
    if (spec.columns == 0) {
      tensor.view().expect(spec.name, {spec.rows});
    } else {
      tensor.view().expect(spec.name, {spec.rows, spec.columns});
    }
    expect_dtype(spec.name, spec.dtype, tensor.dtype());
  }
  if (!weights.sink.empty()) {
    weights.sink.view().expect("sink", {config.geometry.num_heads});
    expect_dtype("sink", DType::float32, weights.sink.dtype());
  }
}

}  // namespace headrace::layer
