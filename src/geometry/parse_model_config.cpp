// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "geometry/architecture.h"
#include "geometry/config_fields.h"
#include "geometry/config_layers.h"
#include "geometry/config_rope.h"
#include "geometry/limits.h"
#include "headrace/model.h"
#include "io/json.h"

namespace headrace {
namespace {

constexpr Range kEpsilon{1e-12, 1.0};
constexpr double kDefaultEpsilon = 1e-6;  // of the architectures' RMSNorm and of the indexer's LayerNorm

// Transformers' defaults for GLM-5.3-Flash's family.
constexpr std::int64_t kDefaultPool = 16;
constexpr bool kDefaultTail = true;

const Architecture& architecture_of(const ConfigFields& document) {
  const Architecture* architecture = find_architecture(document.string("model_type"));
  if (architecture == nullptr) {
    document.fail("model_type", "one of " + architecture_names());
  }
  return *architecture;
}

// The object that holds the language model's fields.
ConfigFields text_fields(const Architecture& architecture, const ConfigFields& document) {
  if (architecture.text_config.empty()) {
    return document;
  }
  ConfigFields fields = document.object(architecture.text_config);
  const std::string expected = std::string(architecture.model_type) + "_text";
  if (fields.has("model_type") && fields.string("model_type") != expected) {
    fields.fail("model_type", "\"" + expected + "\"");
  }
  return fields;
}

Geometry parse_geometry(const Architecture& architecture, const ConfigFields& fields) {
  Geometry geometry;
  geometry.num_heads = fields.integer("num_attention_heads", 1, kMaxHeads);
  geometry.kv_lora_rank = fields.integer("kv_lora_rank", 1, kMaxLatentDim);
  geometry.qk_nope_head_dim = fields.integer("qk_nope_head_dim", 1, kMaxHeadDim);
  geometry.qk_rope_head_dim = fields.integer("qk_rope_head_dim", 0, architecture.nope_only ? 0 : kMaxHeadDim);
  geometry.v_head_dim = fields.integer("v_head_dim", 1, kMaxHeadDim);
  if (geometry.qk_rope_head_dim % 2 != 0) {
    fields.fail("qk_rope_head_dim", "an even number");
  }
  const std::int64_t key_heads =
      fields.optional_integer("num_key_value_heads", 1, kMaxHeads).value_or(geometry.num_heads);
  if (key_heads != geometry.num_heads) {
    fields.fail("num_key_value_heads", "num_attention_heads, " + std::to_string(geometry.num_heads));
  }
  geometry.validate();
  return geometry;
}

// Null means that queries have one projection, which leaves an indexer nothing to project from.
std::optional<std::int64_t> parse_q_lora_rank(const Architecture& architecture, const ConfigFields& fields) {
  constexpr std::string_view kKey = "q_lora_rank";
  if (architecture.indexer == Architecture::Indexer::none && fields.is_null(kKey)) {
    return std::nullopt;
  }
  return fields.integer(kKey, 1, kMaxLatentDim);
}

void parse_kpool(const ConfigFields& fields, IndexerGeometry& indexer) {
  indexer.kpool = true;
  indexer.pool = fields.optional_integer("index_kpool", 1, indexer.topk).value_or(kDefaultPool);
  indexer.tail = fields.optional_boolean("index_kpool_always_select_tail").value_or(kDefaultTail);
  if (indexer.topk % indexer.pool != 0) {
    fields.fail("index_topk", "a multiple of index_kpool, " + std::to_string(indexer.pool));
  }
}

std::optional<IndexerGeometry> parse_indexer(const Architecture& architecture, const ConfigFields& fields,
                                             std::int64_t rope_dim) {
  if (architecture.indexer == Architecture::Indexer::none) {
    return std::nullopt;
  }
  IndexerGeometry indexer;
  indexer.num_heads = fields.integer("index_n_heads", 1, kMaxHeads);
  indexer.head_dim = fields.integer("index_head_dim", 1, kMaxHeadDim);
  indexer.topk = fields.integer("index_topk", 1, kMaxPositions);
  indexer.rope_dim = rope_dim;
  indexer.rope_interleave =
      fields.optional_boolean("indexer_rope_interleave").value_or(architecture.indexer_rope_interleave);
  indexer.key_norm_epsilon = kDefaultEpsilon;
  if (indexer.head_dim < rope_dim) {
    fields.fail("index_head_dim", "at least qk_rope_head_dim, " + std::to_string(rope_dim));
  }
  if (architecture.indexer == Architecture::Indexer::kpool) {
    parse_kpool(fields, indexer);
  }
  return indexer;
}

double parse_norm_epsilon(const Architecture& architecture, const ConfigFields& fields) {
  constexpr std::string_view kKey = "rms_norm_eps";
  if (architecture.norms_use_rms_norm_eps) {
    return fields.number(kKey, kEpsilon);
  }
  // Other norms of the model use the field, so a bad value means a damaged file.
  static_cast<void>(fields.optional_number(kKey, kEpsilon));
  return kDefaultEpsilon;
}

void refuse_bias(const ConfigFields& fields) {
  if (fields.optional_boolean("attention_bias").value_or(false)) {
    fields.fail("attention_bias", "false: projections with a bias are not supported");
  }
}

}  // namespace

ModelConfig parse_model_config(std::string_view json, std::string_view name, Reading reading) {
  const io::Json document_json = io::parse_json(json, name);
  const ConfigFields document(document_json, name, "");
  const Architecture& architecture = architecture_of(document);
  const ConfigFields fields = text_fields(architecture, document);
  refuse_bias(fields);

  ModelConfig config;
  config.reading = reading;
  config.model_type = architecture.model_type;
  config.weight_prefix = architecture.weight_prefix;
  config.hidden_size = fields.integer("hidden_size", 1, kMaxHidden);
  config.num_layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  config.max_position_embeddings = fields.integer("max_position_embeddings", 1, kMaxPositions);
  config.geometry = parse_geometry(architecture, fields);
  config.q_lora_rank = parse_q_lora_rank(architecture, fields);
  config.rope = parse_rope(architecture, fields, config.geometry.qk_rope_head_dim);
  config.q_a_norm_epsilon = parse_norm_epsilon(architecture, fields);
  config.kv_a_norm_epsilon = config.q_a_norm_epsilon;
  config.softmax_scale = softmax_scale(config.geometry.qk_head_dim(), config.rope);
  config.layer_kinds = parse_layer_kinds(architecture, fields, config.num_layers);
  config.indexer = parse_indexer(architecture, fields, config.rope.dim);
  config.shares_selection = parse_sharing(architecture, fields, config.layer_kinds);
  return config;
}

}  // namespace headrace
