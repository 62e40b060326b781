// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>

#include "commands.h"
#include "headrace/model.h"
#include "model_source.h"
#include "output.h"
#include "table.h"

namespace headrace::app {
namespace {

std::int64_t count_layers(const ModelConfig& config, LayerKind kind) {
  return std::count(config.layer_kinds.begin(), config.layer_kinds.end(), kind);
}

/// Layers that take the selection of an earlier one.
std::int64_t count_shared(const ModelConfig& config) {
  return std::count(config.shares_selection.begin(), config.shares_selection.end(), true);
}

SelectionRule rule_of(const ModelConfig& config) { return config.selection_rule(config.first_attention_layer()); }

std::int64_t cache_bytes(const ModelConfig& config) { return cache_row_bytes(CacheFormat::bfloat16, config.geometry); }

Json indexer_json(const ModelConfig& config) {
  if (!config.indexer) {
    return nullptr;
  }
  const IndexerGeometry& indexer = *config.indexer;
  return {{"num_heads", indexer.num_heads},
          {"head_dim", indexer.head_dim},
          {"topk", indexer.topk},
          {"rope_dim", indexer.rope_dim},
          {"rope_interleave", indexer.rope_interleave},
          {"kpool", indexer.kpool},
          {"pool", indexer.pool},
          {"tail", indexer.tail},
          {"cache_bytes_per_token", indexer.cache_row_bytes(DType::bfloat16)}};
}

Json model_json(const std::string& name, const ModelConfig& config) {
  Json model = {{"name", name},
                {"model_type", config.model_type},
                {"hidden_size", config.hidden_size},
                {"layers",
                 {{"total", config.num_layers},
                  {"sparse_attention", count_layers(config, LayerKind::sparse_attention)},
                  {"full_attention", count_layers(config, LayerKind::full_attention)},
                  {"linear_attention", count_layers(config, LayerKind::linear_attention)},
                  {"shared_selection", count_shared(config)}}},
                {"geometry", to_json(config.geometry)},
                {"q_lora_rank", config.q_lora_rank ? Json(*config.q_lora_rank) : Json(nullptr)},
                {"indexer", indexer_json(config)},
                {"selection_rule", rule_of(config).to_string()},
                {"softmax_scale", number(config.softmax_scale)},
                {"max_position_embeddings", config.max_position_embeddings},
                {"cache_bytes_per_token", cache_bytes(config)}};
  add_reading(model, config);
  return model;
}

std::vector<std::string> model_row(const std::string& name, const ModelConfig& config) {
  const Geometry& g = config.geometry;
  std::string indexer = "-";
  if (config.indexer) {
    indexer = fmt::format("{} x {}", config.indexer->num_heads, config.indexer->head_dim);
  }
  return {
      name,
      config.model_type,
      fmt::format("{}/{}/{}", count_layers(config, LayerKind::sparse_attention),
                  count_layers(config, LayerKind::full_attention), count_layers(config, LayerKind::linear_attention)),
      fmt::format("{}", g.num_heads),
      fmt::format("{}", g.kv_lora_rank),
      fmt::format("{}/{}/{}", g.qk_nope_head_dim, g.qk_rope_head_dim, g.v_head_dim),
      indexer,
      rule_of(config).to_string(),
      fmt::format("{}", cache_bytes(config))};
}

}  // namespace

ExitStatus run_models(const Options& options) {
  if (options.json) {
    Json document = new_document();
    document["models"] = Json::array();
    for (const std::string& name : preset_names()) {
      document["models"].push_back(model_json(name, preset(name, options.reading)));
    }
    print_json(document);
    return kAllWell;
  }
  using Align = Table::Align;
  Table table({{"model"},
               {"model_type"},
               {"layers:\nsparse/full/linear"},
               {"heads", Align::right},
               {"R", Align::right},
               {"nope/rope/v"},
               {"indexer:\nheads x dim"},
               {"selection rule\n(topk, pool)"},
               {"cache in bf16,\nbytes a token", Align::right}});
  for (const std::string& name : preset_names()) {
    table.add(model_row(name, preset(name, options.reading)));
  }
  fmt::print("{}", table.to_string(output_width()));
  return kAllWell;
}

}  // namespace headrace::app
