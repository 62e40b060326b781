// SPDX-License-Identifier: Apache-2.0
#include "geometry/ignored_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

namespace headrace {
namespace {

// What an architecture must have for a field to mean something.
enum class Trait {
  any,       // every architecture reads it
  indexer,   // an indexer
  sharing,   // an indexer whose selections layers may share
  kpool,     // an indexer of pools
  rope,      // dims that are rotated
  nope,      // none
  hybrid,    // layers of linear attention
  head_dim,  // head_dim as another name of qk_rope_head_dim
  foreign    // no architecture here has it, but others do
};

struct ConfigField {
  std::string_view key;
  Trait trait = Trait::any;
};

// Every field that decides what a layer computes, for some architecture. docs/configurations.md says who reads it.
constexpr std::array kFields = {ConfigField{"hidden_size"},
                                ConfigField{"num_hidden_layers"},
                                ConfigField{"num_attention_heads"},
                                ConfigField{"num_key_value_heads"},
                                ConfigField{"q_lora_rank"},
                                ConfigField{"kv_lora_rank"},
                                ConfigField{"qk_nope_head_dim"},
                                ConfigField{"qk_rope_head_dim"},
                                ConfigField{"v_head_dim"},
                                ConfigField{"rms_norm_eps"},
                                ConfigField{"attention_bias"},
                                ConfigField{"max_position_embeddings"},
                                ConfigField{"layer_types"},
                                ConfigField{"rope_interleave"},
                                ConfigField{"llama_4_scaling"},
                                ConfigField{"head_dim", Trait::head_dim},
                                ConfigField{"rope_theta", Trait::rope},
                                ConfigField{"rope_scaling", Trait::rope},
                                ConfigField{"rope_parameters", Trait::rope},
                                ConfigField{"partial_rotary_factor", Trait::rope},
                                ConfigField{"original_max_position_embeddings", Trait::rope},
                                ConfigField{"mla_use_nope", Trait::nope},
                                ConfigField{"sliding_window", Trait::foreign},
                                ConfigField{"attention_sink", Trait::foreign},
                                ConfigField{"linear_attn_config", Trait::hybrid},
                                ConfigField{"index_topk", Trait::indexer},
                                ConfigField{"index_n_heads", Trait::indexer},
                                ConfigField{"index_head_dim", Trait::indexer},
                                ConfigField{"indexer_rope_interleave", Trait::indexer},
                                ConfigField{"indexer_types", Trait::sharing},
                                ConfigField{"index_topk_pattern", Trait::sharing},
                                ConfigField{"index_topk_freq", Trait::sharing},
                                ConfigField{"index_skip_topk_offset", Trait::sharing},
                                ConfigField{"use_index_cache", Trait::sharing},
                                ConfigField{"index_kpool", Trait::kpool},
                                ConfigField{"index_kpool_compress", Trait::kpool},
                                ConfigField{"index_kpool_always_select_tail", Trait::kpool}};

bool has(const Architecture& architecture, Trait trait) {
  switch (trait) {
    case Trait::any:
      return true;
    case Trait::indexer:
    case Trait::sharing:
      return architecture.indexer != Architecture::Indexer::none;
    case Trait::kpool:
      return architecture.indexer == Architecture::Indexer::kpool;
    case Trait::rope:
      return !architecture.nope_only;
    case Trait::nope:
      return architecture.nope_only;
    case Trait::hybrid:
      return architecture.hybrid;
    case Trait::head_dim:
      return architecture.head_dim == Architecture::HeadDim::rope_dim;
    case Trait::foreign:
      return false;
  }
  return false;
}

std::string_view lack(Trait trait) {
  switch (trait) {
    case Trait::indexer:
    case Trait::sharing:
      return "has no indexer";
    case Trait::kpool:
      return "has no indexer of pools";
    case Trait::rope:
      return "has no rope";
    case Trait::nope:
      return "always has rope";
    case Trait::hybrid:
      return "has no linear attention";
    case Trait::head_dim:
      return "goes by qk_rope_head_dim";
    case Trait::foreign:
    case Trait::any:
      break;
  }
  return "does not read it";
}

bool of_indexer(Trait trait) { return trait == Trait::indexer || trait == Trait::sharing || trait == Trait::kpool; }

bool known(std::string_view key) {
  return std::any_of(kFields.begin(), kFields.end(), [&](const ConfigField& field) { return field.key == key; });
}

// SGLang reads the field, but there are no dims that it could ask to rotate.
void note_nope(const ConfigReader& reader) {
  constexpr std::string_view kKey = "mla_use_nope";
  if (reader.architecture.nope_only && reader.fields.has(kKey) && !reader.fields.is(kKey, true)) {
    reader.note(kKey, reader.fields.shown(kKey),
                fmt::format("ignored: {} has no rope, whatever it says", reader.architecture.model_type));
  }
}

}  // namespace

bool says_something(const ConfigFields& fields, std::string_view key) {
  if (!fields.has(key)) {
    return false;
  }
  if (key == "indexer_types") {
    return !fields.is_all(key, "full");
  }
  if (key == "index_topk_pattern") {
    return !fields.is_all(key, "F") && !fields.is_all(key, "full");
  }
  if (key == "index_topk_freq" || key == "index_kpool") {
    return !fields.is(key, 1);
  }
  if (key == "use_index_cache" || key == "mla_use_nope" || key == "attention_sink") {
    return !fields.is(key, false);
  }
  if (key == "head_dim") {
    return !fields.same_values(key, "qk_rope_head_dim");
  }
  return true;
}

void note_ignored_fields(const ConfigReader& reader, bool except_indexer) {
  const Architecture& architecture = reader.architecture;
  note_nope(reader);
  for (const ConfigField& field : kFields) {
    if (has(architecture, field.trait) || !says_something(reader.fields, field.key) ||
        (except_indexer && of_indexer(field.trait))) {
      continue;
    }
    std::string ignored = fmt::format("ignored: {} {}", architecture.model_type, lack(field.trait));
    if (field.key == "index_topk") {
      ignored += " to SGLang and transformers. vLLM builds one";
    }
    reader.note(field.key, reader.fields.shown(field.key), std::move(ignored));
  }
}

void note_misplaced_fields(const ConfigReader& reader, const ConfigFields& document) {
  constexpr std::string_view kTextConfig = "text_config";
  const std::optional<ConfigFields> nested = document.present(kTextConfig) && document.shown(kTextConfig) == "an object"
                                                 ? document.optional_object(kTextConfig)
                                                 : std::nullopt;
  if (!nested) {
    return;
  }
  const bool read = reader.architecture.text_config == kTextConfig;
  const ConfigFields& other = read ? document : *nested;
  for (const std::string& key : other.keys()) {
    if (known(key) && !other.same_at(key, reader.fields)) {
      reader.note(other, key, other.shown(key),
                  fmt::format("ignored: {} reads {} {}", reader.architecture.model_type, key,
                              read ? "in text_config" : "at the top"));
    }
  }
}

}  // namespace headrace
