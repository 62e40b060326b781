// SPDX-License-Identifier: Apache-2.0
#include "geometry/architecture.h"

#include <algorithm>
#include <array>

namespace headrace {
namespace {

using Indexer = Architecture::Indexer;

using HeadDim = Architecture::HeadDim;

constexpr Architecture kGlm5Next{.model_type = "glm5_next",
                                 .indexer = Indexer::kpool,
                                 .transformers_shares_selection = true,
                                 .nope_only = true,
                                 .hybrid = true,
                                 .transformers_norms_use_rms_norm_eps = true,
                                 .text_config = "text_config",
                                 .nested_weight_prefix = "model.language_model.layers."};

// The language model of a glm5_next, saved by itself.
constexpr Architecture glm5_next_text() {
  Architecture text = kGlm5Next;
  text.model_type = "glm5_next_text";
  text.text_config = {};
  return text;
}

constexpr std::array kArchitectures = {
    Architecture{.model_type = "deepseek_v2", .nullable_key_heads = true, .heads_divide_hidden = true},
    Architecture{.model_type = "deepseek_v3",
                 .with_index_topk = "deepseek_v32",
                 .has_rope_interleave = true,
                 .head_dim = HeadDim::of_transformers,
                 .nullable_key_heads = true},
    // DeepSeek-V3's architecture under another name, which transformers 5.17 does not know. Published files name code
    // of their own, DeepSeek-V3's; and inside of a kimi_k25 transformers makes the name deepseek_v3.
    Architecture{.model_type = "kimi_k2",
                 .in_transformers = false,
                 .with_index_topk = "deepseek_v32",
                 .has_rope_interleave = true,
                 .head_dim = HeadDim::of_transformers,
                 .nullable_key_heads = true},
    Architecture{.model_type = "deepseek_v32", .indexer = Indexer::lightning},
    Architecture{.model_type = "glm_moe_dsa",
                 .indexer = Indexer::lightning,
                 .transformers_shares_selection = true,
                 .transformers_indexer_interleaves = true},
    Architecture{.model_type = "glm4_moe_lite", .has_rope_interleave = true, .head_dim = HeadDim::rope_dim},
    kGlm5Next,
    glm5_next_text(),
};

}  // namespace

const Architecture* find_architecture(std::string_view model_type) {
  const auto* found = std::find_if(kArchitectures.begin(), kArchitectures.end(),
                                   [&](const Architecture& a) { return a.model_type == model_type; });
  return found == kArchitectures.end() ? nullptr : found;
}

std::string architecture_names() {
  std::string names;
  for (const Architecture& architecture : kArchitectures) {
    names += names.empty() ? "" : ", ";
    names += architecture.model_type;
  }
  return names;
}

}  // namespace headrace
