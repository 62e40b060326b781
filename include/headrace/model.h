// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/export.h"
#include "headrace/geometry.h"
#include "headrace/indexer.h"
#include "headrace/selection.h"

namespace headrace {

/// YaRN context extension (Peng et al., arXiv 2309.00071), with the fields of a Hugging Face configuration.
struct Yarn {
  double factor = 1.0;
  std::int64_t original_max_position_embeddings = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  std::optional<double> attention_factor;
  bool truncate = true;
};

/// Rotary position embedding of the query's and the key's rope dims.
struct Rope {
  std::int64_t dim = 0;  ///< qk_rope_head_dim; 0: no rope at all
  double theta = 10000.0;
  std::optional<Yarn> yarn;  ///< absent: plain rope
  bool interleave = true;    ///< pairs (0,1), (2,3), ... as in all MLA checkpoints; false: (0, dim/2), ...
};

enum class LayerKind : std::uint8_t {
  sparse_attention,  ///< MLA over a selection
  full_attention,    ///< MLA over every causal key
  linear_attention,  ///< not MLA: outside Headrace's scope
};

/// Whose reading of a configuration counts where those who run the models disagree (docs/configurations.md).
enum class Reading : std::uint8_t {
  engines,       ///< vLLM's and SGLang's
  transformers,  ///< Hugging Face transformers'
};

/// "engines", "transformers".
[[nodiscard]] HEADRACE_EXPORT std::string_view name_of(Reading reading) noexcept;
/// @throws Error for another name
[[nodiscard]] HEADRACE_EXPORT Reading reading_from_name(std::string_view name);

/// What a reader of a configuration should know: a field that decides what a layer computes and that is read in more
/// than one way, or not at all.
struct ConfigNote {
  std::string field;   ///< its path in the document, "rope_scaling.rope_theta"
  std::string found;   ///< the values in question, and who takes which
  std::string chosen;  ///< what was made of it
};

/// What a Hugging Face config.json says about a model's attention layers.
struct HEADRACE_EXPORT ModelConfig {
  /// deepseek_v2, deepseek_v3, kimi_k2, deepseek_v32, glm_moe_dsa, ...: what its layers are. A deepseek_v3 that engines
  /// read as a deepseek_v32 is one.
  std::string model_type;
  /// The field that makes the layers another architecture's than the one that the file names: "index_topk" where
  /// engines read a deepseek_v3 as a deepseek_v32. Else empty.
  std::string remade_by;
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t max_position_embeddings = 0;
  Geometry geometry;    ///< of one rank: num_heads is already divided by `tp`
  std::int64_t tp = 1;  ///< tensor-parallel ranks; with more than one a layer's output is a partial sum
  std::optional<std::int64_t> q_lora_rank;  ///< absent: one q_proj instead of q_a_proj, norm, q_b_proj
  Rope rope;
  double q_a_norm_epsilon = 1e-6;
  double kv_a_norm_epsilon = 1e-6;
  double softmax_scale = 0.0;              ///< 1/sqrt(qk_head_dim), times YaRN's mscale^2 where the model has one
  std::vector<LayerKind> layer_kinds;      ///< one a layer
  std::optional<IndexerGeometry> indexer;  ///< absent when no layer is sparse
  std::vector<bool> shares_selection;  ///< one a layer: takes the selection of the nearest earlier layer that scores
  std::string weight_prefix;           ///< "model.layers." or "model.language_model.layers."
  Reading reading = Reading::engines;  ///< which one this is
  /// Under the other reading some layer computes something else; false where that one refuses the configuration.
  bool readings_differ = false;
  std::vector<ConfigNote> notes;

  /// One rank's share of the heads. @throws Error unless tp >= 1 divides the heads
  [[nodiscard]] ModelConfig shard(std::int64_t ranks) const;
  /// The layer whose selection `layer` uses: itself, or the nearest earlier sparse layer that scores.
  /// @throws Error when there is none or `layer` is no sparse attention layer
  [[nodiscard]] std::int64_t selection_source(std::int64_t layer) const;
  /// The selection rule of a layer. @throws Error for a linear attention layer or one out of range
  [[nodiscard]] SelectionRule selection_rule(std::int64_t layer) const;
  /// The first layer that is MLA and has its own indexer (or is MLA at all, where no layer has one).
  [[nodiscard]] std::int64_t first_attention_layer() const;
};

/// Reads a configuration. Every field the architecture needs must be present, of the right type and in range. Only what
/// published configurations leave out may be absent, and then has the value of vLLM, SGLang and Hugging Face
/// transformers:
///   num_key_value_heads            num_attention_heads, which it must equal
///   attention_bias                 false; true is not supported
///   layer_types                    every layer alike; in hybrid architectures every fourth layer is sparse, or to
///                                  engines what linear_attn_config.kda_layers says
///   indexer_types, index_topk_pattern, index_topk_freq   every layer scores
///   index_skip_topk_offset         2
///   indexer_rope_interleave        false to engines; by architecture to transformers, whatever the field says
///   rope_interleave                true
///   index_kpool, index_kpool_always_select_tail, index_kpool_compress   16, true, true; false is not supported
///   rope_scaling, rope_parameters  plain rope
///   their rope_type, rope_theta    "default"; the rope_theta beside them
///   YaRN's beta_fast, beta_slow, mscale, mscale_all_dim, attention_factor, truncate   as in struct Yarn
///   YaRN's original_max_position_embeddings   max_position_embeddings
///   rms_norm_eps                   1e-6 to transformers, where the norms of q_a and kv_a do not use it
/// Lists of layers may be longer than num_hidden_layers: the first entries are taken, and that is noted. Null counts as
/// absent in rope_scaling, rope_parameters, layer_types, indexer_types, index_topk_pattern, text_config and YaRN's
/// numbers (but for engines' betas), means one query projection in q_lora_rank, and is refused elsewhere.
/// docs/configurations.md says who reads which field, and what differs between the two readings. Fields that decide
/// what another architecture computes and that this one ignores are noted.
/// @param json  the text of a config.json
/// @param name  how errors call it, e.g. the file's path
/// @param reading  which reading counts where references disagree
/// @throws Error for malformed JSON, an unknown model_type or rope type, a missing, mistyped or impossible field, or
///         fields that contradict each other
[[nodiscard]] HEADRACE_EXPORT ModelConfig parse_model_config(std::string_view json,
                                                             std::string_view name = "config.json",
                                                             Reading reading = Reading::engines);

/// Reads `path`, or `path`/config.json when it is a directory. @throws Error also when it cannot be read
[[nodiscard]] HEADRACE_EXPORT ModelConfig load_model_config(const std::filesystem::path& path,
                                                            Reading reading = Reading::engines);

/// Names of the presets that ship with the library ("glm-5.3-flash", ...), sorted.
[[nodiscard]] HEADRACE_EXPORT std::vector<std::string> preset_names();

/// A preset's configuration. @throws Error with the list of names when there is no such preset
[[nodiscard]] HEADRACE_EXPORT ModelConfig preset(std::string_view name, Reading reading = Reading::engines);

}  // namespace headrace
