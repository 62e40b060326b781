// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace headrace {

/// What differs between the architectures' attention and is not written in their configurations. The facts are those of
/// Hugging Face transformers 5.17 (models/*/modeling_*.py and configuration_*.py), of vLLM and of SGLang;
/// docs/configurations.md lists them by field.
struct Architecture {
  enum class Indexer { none, lightning, kpool };
  /// What a field `head_dim` means, which some files have beside qk_rope_head_dim.
  enum class HeadDim {
    ignored,
    rope_dim,         ///< another name of qk_rope_head_dim
    of_transformers,  ///< transformers takes its rope frequencies from it, and so cannot run with another value
  };

  std::string_view model_type;
  /// Whether transformers has it. What this says of transformers for one that it has not is of deepseek_v3.
  bool in_transformers = true;
  Indexer indexer = Indexer::none;
  /// The architecture that engines make of this one where the configuration has `index_topk`; empty: none.
  std::string_view with_index_topk = {};
  /// Transformers lets layers take the selection of an earlier one: indexer_types and its kin. Engines always do.
  bool transformers_shares_selection = false;
  /// Whether transformers pairs the dims (0,1), (2,3), ... of indexer heads and keys, whatever the configuration says.
  bool transformers_indexer_interleaves = false;
  /// `rope_interleave` may be false. The others have interleaved rope and no such field.
  bool has_rope_interleave = false;
  /// Attention without rope: qk_rope_head_dim must be 0, and fields of rope mean nothing.
  bool nope_only = false;
  /// Layers may be linear attention: layer_types says which.
  bool hybrid = false;
  /// Transformers gives rms_norm_eps to the q_a and kv_a norms; the others construct them without it and get 1e-6.
  bool transformers_norms_use_rms_norm_eps = false;
  HeadDim head_dim = HeadDim::ignored;
  /// `num_key_value_heads` may be null.
  bool nullable_key_heads = false;
  /// hidden_size must be a multiple of the heads.
  bool heads_divide_hidden = false;
  /// Fields lie in this object of the configuration where it has one; else, and where this is empty, at the top.
  std::string_view text_config = {};
  /// Of the layers' weights where fields lie in `text_config`, and where they lie at the top.
  std::string_view nested_weight_prefix = {};
  std::string_view weight_prefix = "model.layers.";
};

/// nullptr when there is none.
[[nodiscard]] const Architecture* find_architecture(std::string_view model_type);

/// "deepseek_v2, deepseek_v3, ...", for errors.
[[nodiscard]] std::string architecture_names();

}  // namespace headrace
