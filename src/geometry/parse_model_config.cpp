// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "geometry/architecture.h"
#include "geometry/config_fields.h"
#include "geometry/config_indexer.h"
#include "geometry/config_layers.h"
#include "geometry/config_reader.h"
#include "geometry/config_rope.h"
#include "geometry/ignored_fields.h"
#include "geometry/limits.h"
#include "geometry/same_layers.h"
#include "headrace/error.h"
#include "headrace/model.h"
#include "io/json.h"

namespace headrace {
namespace {

constexpr Range kEpsilon{1e-12, 1.0};
constexpr std::string_view kNormEpsilon = "rms_norm_eps";
constexpr std::string_view kIndexTopk = "index_topk";
constexpr double kDefaultEpsilon = 1e-6;  // of the RMSNorm of transformers' architectures

const Architecture& architecture_of(const ConfigFields& document) {
  const Architecture* architecture = find_architecture(document.string("model_type"));
  if (architecture == nullptr) {
    document.fail("model_type", "one of " + architecture_names());
  }
  return *architecture;
}

// Whether the language model's fields lie in an object of their own. Without it they lie at the top, as transformers
// and vLLM have it too.
bool is_nested(const Architecture& architecture, const ConfigFields& document) {
  return !architecture.text_config.empty() && document.has(architecture.text_config);
}

// Fields that must be there, and lie where this architecture does not look: at the top, or in text_config.
void require_place(const Architecture& architecture, const ConfigFields& document, const ConfigFields& fields) {
  constexpr std::string_view kNested = "text_config";
  constexpr std::array<std::string_view, 9> kKeys = {"num_hidden_layers", "hidden_size",  "num_attention_heads",
                                                     "q_lora_rank",       "kv_lora_rank", "qk_nope_head_dim",
                                                     "qk_rope_head_dim",  "v_head_dim",   "max_position_embeddings"};
  if (!architecture.text_config.empty() && document.is_null(kNested) && !fields.present(kKeys.front())) {
    fields.fail(kNested, fmt::format("an object with {}, or that at the top", kKeys.front()));
  }
  if (!document.has(kNested) || document.shown(kNested) != "an object") {
    return;
  }
  const bool nested = is_nested(architecture, document);
  const ConfigFields other = nested ? document : document.object(kNested);
  const auto* misplaced = std::find_if(
      kKeys.begin(), kKeys.end(), [&](std::string_view key) { return !fields.present(key) && other.present(key); });
  if (misplaced != kKeys.end()) {
    fields.fail(*misplaced,
                fmt::format("it {}, where {} has its fields", nested ? "in text_config" : "at the top",
                            architecture.model_type),
                nested ? "it at the top" : "it in text_config");
  }
}

ConfigFields text_fields(const Architecture& architecture, const ConfigFields& document) {
  if (!is_nested(architecture, document)) {
    return document;
  }
  ConfigFields fields = document.object(architecture.text_config);
  const std::string expected = std::string(architecture.model_type) + "_text";
  if (fields.present("model_type") && fields.string("model_type") != expected) {
    fields.fail("model_type", "\"" + expected + "\"");
  }
  return fields;
}

std::int64_t parse_rope_dim(const ConfigReader& reader) {
  constexpr std::string_view kKey = "qk_rope_head_dim";
  constexpr std::string_view kOtherName = "head_dim";
  const ConfigFields& fields = reader.fields;
  const Architecture::HeadDim meaning = reader.architecture.head_dim;
  const bool other_name = meaning == Architecture::HeadDim::rope_dim && fields.has(kOtherName);
  const std::string_view key = other_name && !fields.present(kKey) ? kOtherName : kKey;
  const std::int64_t dim = fields.integer(key, 0, reader.architecture.nope_only ? 0 : kMaxHeadDim);
  if (dim % 2 != 0) {
    fields.fail(key, "an even number");
  }
  const bool must_agree = other_name || (meaning == Architecture::HeadDim::of_transformers && !reader.as_engines() &&
                                         fields.has(kOtherName));
  if (must_agree && !fields.is(kOtherName, dim)) {
    fields.fail(kOtherName, fmt::format("the same as {}, {}", kKey, dim));
  }
  return dim;
}

void check_key_heads(const ConfigFields& fields, bool nullable, std::int64_t heads) {
  constexpr std::string_view kKey = "num_key_value_heads";
  if (!fields.present(kKey) || (nullable && fields.is_null(kKey))) {
    return;
  }
  if (fields.integer(kKey, 1, kMaxHeads) != heads) {
    fields.fail(kKey, "num_attention_heads, " + std::to_string(heads));
  }
}

// A sum that files may state and nobody reads. One that is not its parts' means that a part is wrong.
void check_key_dim(const ConfigFields& fields, std::int64_t dim) {
  constexpr std::string_view kKey = "qk_head_dim";
  if (fields.has(kKey) && !fields.is(kKey, dim)) {
    fields.fail(kKey, fmt::format("qk_nope_head_dim + qk_rope_head_dim, {}", dim));
  }
}

Geometry parse_geometry(const ConfigReader& reader, const Architecture& named) {
  const ConfigFields& fields = reader.fields;
  Geometry geometry;
  geometry.num_heads = fields.integer("num_attention_heads", 1, kMaxHeads);
  geometry.kv_lora_rank = fields.integer("kv_lora_rank", 1, kMaxLatentDim);
  geometry.qk_nope_head_dim = fields.integer("qk_nope_head_dim", 1, kMaxHeadDim);
  geometry.qk_rope_head_dim = parse_rope_dim(reader);
  geometry.v_head_dim = fields.integer("v_head_dim", 1, kMaxHeadDim);
  check_key_heads(fields, named.nullable_key_heads, geometry.num_heads);
  geometry.validate();
  check_key_dim(fields, geometry.qk_head_dim());
  return geometry;
}

std::int64_t parse_hidden_size(const ConfigReader& reader, std::int64_t heads) {
  constexpr std::string_view kKey = "hidden_size";
  const std::int64_t hidden = reader.fields.integer(kKey, 1, kMaxHidden);
  if (reader.architecture.heads_divide_hidden && hidden % heads != 0) {
    reader.fields.fail(kKey, fmt::format("a multiple of num_attention_heads, {}", heads));
  }
  return hidden;
}

// Null means that queries have one projection, which leaves an indexer nothing to project from.
std::optional<std::int64_t> parse_q_lora_rank(const ConfigReader& reader) {
  constexpr std::string_view kKey = "q_lora_rank";
  if (reader.architecture.indexer == Architecture::Indexer::none && reader.fields.is_null(kKey)) {
    return std::nullopt;
  }
  return reader.fields.integer(kKey, 1, kMaxLatentDim);
}

void note_epsilon(const ConfigReader& reader) {
  reader.note_difference(kNormEpsilon, "the q_a and kv_a norms use it", fmt::format("they use {:g}", kDefaultEpsilon));
}

double parse_norm_epsilon(const ConfigReader& reader) {
  constexpr std::string_view kKey = kNormEpsilon;
  if (reader.as_engines() || reader.architecture.transformers_norms_use_rms_norm_eps) {
    const double epsilon = reader.fields.number(kKey, kEpsilon);
    if (!reader.architecture.transformers_norms_use_rms_norm_eps && epsilon != kDefaultEpsilon) {
      note_epsilon(reader);
    }
    return epsilon;
  }
  // Other norms of the model use the field, so a bad value means a damaged file.
  const std::optional<double> epsilon = reader.fields.optional_number(kKey, kEpsilon);
  if (epsilon && *epsilon != kDefaultEpsilon) {
    note_epsilon(reader);
  }
  return kDefaultEpsilon;
}

void refuse_unsupported(const ConfigReader& reader) {
  const ConfigFields& fields = reader.fields;
  if (fields.optional_boolean("attention_bias").value_or(false)) {
    fields.fail("attention_bias", "false: projections with a bias are not supported");
  }
  constexpr std::string_view kQueryScaling = "llama_4_scaling";
  if (fields.has(kQueryScaling)) {
    if (reader.as_engines()) {
      fields.fail(kQueryScaling, "nothing: queries that are scaled by position are not supported");
    }
    reader.note(kQueryScaling, fields.shown(kQueryScaling), "ignored, as transformers does; vLLM scales queries by it");
  }
}

// The architecture whose layers these are: engines look for `index_topk`, transformers goes by the model's type.
const Architecture& effective_architecture(const ConfigReader& reader) {
  const Architecture& named = reader.architecture;
  if (named.with_index_topk.empty() || !reader.fields.has(kIndexTopk)) {
    return named;
  }
  reader.note_difference(kIndexTopk, fmt::format("{}, sparse attention", named.with_index_topk),
                         fmt::format("{}, every layer attends to every key", named.model_type));
  return reader.as_engines() ? *find_architecture(named.with_index_topk) : named;
}

// The indexer, whose missing fields may be asked for by one that the file does have.
std::optional<IndexerGeometry> parse_indexer(const ConfigReader& reader, const Architecture& named,
                                             std::int64_t rope_dim) {
  try {
    return parse_indexer(reader, rope_dim);
  } catch (const Error& error) {
    if (&reader.architecture == &named) {
      throw;
    }
    throw Error(error.argument(),
                fmt::format("{}, for {} makes this a {}", error.expected(), kIndexTopk, reader.architecture.model_type),
                error.actual());
  }
}

ModelConfig read(const ConfigFields& document, Reading reading) {
  const Architecture& named = architecture_of(document);
  const ConfigFields fields = text_fields(named, document);
  require_place(named, document, fields);
  ModelConfig config;
  const ConfigReader of_named{named, fields, reading, config.notes};
  const Architecture& architecture = effective_architecture(of_named);
  const ConfigReader reader{architecture, fields, reading, config.notes};
  refuse_unsupported(reader);
  if (!architecture.in_transformers && !reader.as_engines()) {
    reader.note(document, "model_type", document.shown("model_type"),
                "read as a deepseek_v3: transformers has no architecture of this name");
  }

  config.reading = reading;
  config.model_type = architecture.model_type;
  config.remade_by = &architecture == &named ? "" : kIndexTopk;
  config.weight_prefix = is_nested(named, document) ? named.nested_weight_prefix : named.weight_prefix;
  config.num_layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  config.max_position_embeddings = fields.integer("max_position_embeddings", 1, kMaxPositions);
  config.geometry = parse_geometry(reader, named);
  config.hidden_size = parse_hidden_size(reader, config.geometry.num_heads);
  config.q_lora_rank = parse_q_lora_rank(reader);
  config.rope = parse_rope(reader, config.geometry.qk_rope_head_dim, config.max_position_embeddings);
  config.q_a_norm_epsilon = parse_norm_epsilon(reader);
  config.kv_a_norm_epsilon = config.q_a_norm_epsilon;
  config.softmax_scale = softmax_scale(config.geometry.qk_head_dim(), config.rope);
  config.layer_kinds = parse_layer_kinds(reader, config.num_layers);
  config.indexer = parse_indexer(reader, named, config.rope.dim);
  config.shares_selection = parse_sharing(reader, config.layer_kinds);
  const bool dense_with_index_topk = !named.with_index_topk.empty() && fields.has(kIndexTopk);
  note_ignored_fields(reader, dense_with_index_topk);
  note_misplaced_fields(reader, document);
  return config;
}

}  // namespace

ModelConfig parse_model_config(std::string_view json, std::string_view name, Reading reading) {
  const io::Json document_json = io::parse_json(json, name);
  const ConfigFields document(document_json, name, "");
  ModelConfig config = read(document, reading);
  try {
    const Reading other = reading == Reading::engines ? Reading::transformers : Reading::engines;
    config.readings_differ = !same_layers(config, read(document, other));
  } catch (const Error&) {
    config.readings_differ = false;  // the other reading gives no layer at all
  }
  return config;
}

}  // namespace headrace
