// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>

#include "geometry/presets.h"
#include "headrace/error.h"
#include "headrace/model.h"
#include "io/mapped_file.h"

namespace headrace {
namespace {

LayerKind kind_at(const ModelConfig& config, std::int64_t layer) {
  const auto layers = static_cast<std::int64_t>(config.layer_kinds.size());
  if (layer < 0 || layer >= layers) {
    throw Error("layer", fmt::format("a layer in [0, {})", layers), std::to_string(layer));
  }
  return config.layer_kinds[static_cast<std::size_t>(layer)];
}

bool shares(const ModelConfig& config, std::int64_t layer) {
  const auto i = static_cast<std::size_t>(layer);
  return i < config.shares_selection.size() && config.shares_selection[i];
}

// Sparse, with an indexer of its own.
bool scores(const ModelConfig& config, std::int64_t layer) {
  return kind_at(config, layer) == LayerKind::sparse_attention && !shares(config, layer);
}

}  // namespace

ModelConfig ModelConfig::shard(std::int64_t ranks) const {
  if (ranks < 1 || geometry.num_heads % ranks != 0) {
    throw Error("tp", fmt::format("a divisor of the {} heads", geometry.num_heads), std::to_string(ranks));
  }
  ModelConfig result = *this;
  result.geometry.num_heads /= ranks;
  result.tp *= ranks;
  return result;
}

std::int64_t ModelConfig::selection_source(std::int64_t layer) const {
  if (kind_at(*this, layer) != LayerKind::sparse_attention) {
    throw Error("layer", "a sparse attention layer", fmt::format("layer {}, which is none", layer));
  }
  for (std::int64_t source = layer; source >= 0; --source) {
    if (scores(*this, source)) {
      return source;
    }
  }
  throw Error("layer", "one with a selection", fmt::format("layer {}, before which none scores", layer));
}

SelectionRule ModelConfig::selection_rule(std::int64_t layer) const {
  switch (kind_at(*this, layer)) {
    case LayerKind::sparse_attention:
      if (!indexer) {
        throw Error("indexer", "the dimensions of the sparse layers' indexer", "nothing");
      }
      return indexer->rule();
    case LayerKind::full_attention:
      return SelectionRule::none();
    case LayerKind::linear_attention:
      break;
  }
  throw Error("layer", "a layer of multi-head latent attention", fmt::format("layer {}, linear attention", layer));
}

std::int64_t ModelConfig::first_attention_layer() const {
  const auto layers = static_cast<std::int64_t>(layer_kinds.size());
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if (scores(*this, layer)) {
      return layer;
    }
  }
  const auto found = std::find(layer_kinds.begin(), layer_kinds.end(), LayerKind::full_attention);
  if (found == layer_kinds.end()) {
    throw Error("layer_types", "a layer of multi-head latent attention", "none");
  }
  return found - layer_kinds.begin();
}

std::string_view name_of(Reading reading) noexcept { return reading == Reading::engines ? "engines" : "transformers"; }

Reading reading_from_name(std::string_view name) {
  for (const Reading reading : {Reading::engines, Reading::transformers}) {
    if (name == name_of(reading)) {
      return reading;
    }
  }
  throw Error("reading", "engines or transformers", fmt::format("\"{}\"", name));
}

ModelConfig load_model_config(const std::filesystem::path& path, Reading reading) {
  std::error_code ignored;
  const io::MappedFile file(std::filesystem::is_directory(path, ignored) ? path / "config.json" : path);
  return parse_model_config(file.text(), file.path().string(), reading);
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const EmbeddedPreset& preset : embedded_presets()) {
    names.emplace_back(preset.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

ModelConfig preset(std::string_view name, Reading reading) {
  for (const EmbeddedPreset& preset : embedded_presets()) {
    if (preset.name == name) {
      return parse_model_config(preset.json, name, reading);
    }
  }
  throw Error("preset", fmt::format("one of {}", fmt::join(preset_names(), ", ")), std::string(name));
}

}  // namespace headrace
