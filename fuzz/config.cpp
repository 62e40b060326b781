// SPDX-License-Identifier: Apache-2.0
// The bytes of a config.json. What the parser accepts must make sense to everything that reads a ModelConfig.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "headrace/model.h"
#include "headrace/plan.h"
#include "layer/rope.h"
#include "layer/weight_specs.h"
#include "target.h"

namespace headrace::fuzz {
namespace {

constexpr std::int64_t kMostValues = std::int64_t{1} << 60;  // of a weight: its bytes fit 64 bits

void check_rope(const Rope& rope) {
  const layer::RopeFrequencies frequencies = layer::rope_frequencies(rope);
  require(std::isfinite(frequencies.attention_factor), "a rope attention factor that is not finite");
  for (const double inverse : frequencies.inverse) {
    require(std::isfinite(inverse), "a rope frequency that is not finite");
  }
}

/// A layer is refused with an Error, or it has a rule, an Attention and weights that can be addressed.
void check_layer(const ModelConfig& config, std::int64_t number) {
  if (!completes([&] { static_cast<void>(config.selection_rule(number)); })) {
    require(config.layer_kinds[static_cast<std::size_t>(number)] == LayerKind::linear_attention,
            "a layer of MLA without a selection rule");
    return;
  }
  const Attention attention{config.geometry, config.selection_rule(number), config.softmax_scale};
  require(completes([&] { attention.validate(); }), "a layer that no plan can be made for");
  completes([&] {
    for (const layer::WeightSpec& spec : layer::weight_specs(config, number, DType::bfloat16)) {
      require(spec.rows >= 1 && spec.columns >= 0, "a weight without a size");
      require(spec.rows <= kMostValues / std::max<std::int64_t>(spec.columns, 1), "a weight that overflows");
    }
  });
}

void check(const ModelConfig& config) {
  require(static_cast<std::int64_t>(config.layer_kinds.size()) == config.num_layers, "layers without a kind");
  require(std::isfinite(config.softmax_scale) && config.softmax_scale > 0.0, "no softmax scale");
  for (const ConfigNote& note : config.notes) {
    require(!note.field.empty() && !note.found.empty() && !note.chosen.empty(), "a note that says nothing");
  }
  require(config.shard(config.geometry.num_heads).geometry.num_heads == 1, "one rank a head does not work");
  require(!completes([&] { static_cast<void>(config.shard(config.geometry.num_heads + 1)); }), "a head split in two");
  completes([&] { static_cast<void>(config.first_attention_layer()); });
  require(!completes([&] { static_cast<void>(config.selection_rule(config.num_layers)); }), "a layer too many");
  check_rope(config.rope);
  // Every layer of a small model, a sample of a large one.
  const std::int64_t step = std::max<std::int64_t>(config.num_layers / 64, 1);
  for (std::int64_t number = 0; number < config.num_layers; number += step) {
    check_layer(config, number);
  }
}

}  // namespace
}  // namespace headrace::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headrace;
  for (const Reading reading : {Reading::engines, Reading::transformers}) {
    std::optional<ModelConfig> config;
    fuzz::completes([&] { config = parse_model_config(fuzz::text_of(data, size), "config.json", reading); });
    if (config) {
      fuzz::check(*config);
    }
  }
  return 0;
}
