// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace headrace {

/// What differs between the architectures' attention and is not written in their configurations. The facts are those of
/// Hugging Face transformers 5.17, models/*/modeling_*.py and configuration_*.py.
struct Architecture {
  enum class Indexer { none, lightning, kpool };

  std::string_view model_type;
  Indexer indexer = Indexer::none;
  /// Layers may take the selection of an earlier one: indexer_types, index_topk_pattern, index_topk_freq.
  bool shares_selection = false;
  /// Whether indexer heads and keys pair (0,1), (2,3), ... where `indexer_rope_interleave` is absent.
  bool indexer_rope_interleave = false;
  /// `rope_interleave` may be false. The others have interleaved rope and no such field.
  bool has_rope_interleave = false;
  /// Attention without rope: qk_rope_head_dim must be 0.
  bool nope_only = false;
  /// Layers may be linear attention: layer_types must say which.
  bool hybrid = false;
  /// The q_a and kv_a norms use rms_norm_eps; the others construct them without it and get 1e-6.
  bool norms_use_rms_norm_eps = false;
  /// Fields lie in this object of the configuration; empty: at the top.
  std::string_view text_config = {};
  std::string_view weight_prefix = "model.layers.";
};

/// nullptr when there is none.
[[nodiscard]] const Architecture* find_architecture(std::string_view model_type);

/// "deepseek_v2, deepseek_v3, ...", for errors.
[[nodiscard]] std::string architecture_names();

}  // namespace headrace
