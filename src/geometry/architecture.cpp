// SPDX-License-Identifier: Apache-2.0
#include "geometry/architecture.h"

#include <algorithm>
#include <array>

namespace headrace {
namespace {

using Indexer = Architecture::Indexer;

constexpr std::array kArchitectures = {
    Architecture{.model_type = "deepseek_v2"},
    Architecture{.model_type = "deepseek_v3", .has_rope_interleave = true},
    // DeepSeek-V3's architecture under another name.
    Architecture{.model_type = "kimi_k2", .has_rope_interleave = true},
    Architecture{.model_type = "deepseek_v32", .indexer = Indexer::lightning},
    Architecture{.model_type = "glm_moe_dsa",
                 .indexer = Indexer::lightning,
                 .shares_selection = true,
                 .indexer_rope_interleave = true},
    Architecture{.model_type = "glm4_moe_lite", .has_rope_interleave = true},
    Architecture{.model_type = "glm5_next",
                 .indexer = Indexer::kpool,
                 .shares_selection = true,
                 .nope_only = true,
                 .hybrid = true,
                 .norms_use_rms_norm_eps = true,
                 .text_config = "text_config",
                 .weight_prefix = "model.language_model.layers."},
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
