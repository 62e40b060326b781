// SPDX-License-Identifier: Apache-2.0
#include "model_source.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>

#include "numbers.h"
#include "stated_error.h"
#include "suggestion.h"
#include "table.h"

namespace headrace::app {
namespace {

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

/// Whether weights are meant. A link that leads nowhere and a shard without its index count: loading them says what is
/// wrong, where random weights would hide it.
bool has_weights(const std::filesystem::path& folder) {
  std::error_code problem;
  for (std::filesystem::directory_iterator entry(folder, problem), end; !problem && entry != end;
       entry.increment(problem)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("model") && name.find(".safetensors") != std::string::npos) {
      return true;
    }
  }
  if (problem && problem != std::errc::not_a_directory) {
    throw Error("--model", "a folder that can be listed",
                fmt::format("\"{}\": {}", folder.string(), problem.message()));
  }
  return false;
}

/// The layers with multi-head latent attention, as list_numbers writes them.
std::string attention_layers(const ModelConfig& config) {
  std::vector<std::int64_t> layers;
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    if (config.layer_kinds[static_cast<std::size_t>(i)] != LayerKind::linear_attention) {
      layers.push_back(i);
    }
  }
  return list_numbers(layers);
}

/// A preset, or the error that tells which one was probably meant.
ModelConfig named_preset(const std::string& name, Reading reading) {
  const std::vector<std::string> names = preset_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    const std::string expected = fmt::format("a folder with a config.json, or one of {}", fmt::join(names, ", "));
    throw StatedError("--model", expected, fmt::format("\"{}\"", name),
                      fmt::format("expected {}, got \"{}\"{}", expected, name, did_you_mean(name, names)));
  }
  return named("--model", [&] { return preset(name, reading); });
}

/// The error that tells which request the forced path cannot serve, by its lengths as SPEC writes them.
ForcedPathError forced_path_error(const Attention& attention, const Batch& batch, const Limits& limits,
                                  const Hints& hints, const Error& error) {
  const auto fails = [&](std::size_t b) {
    const Batch alone{batch.query_len.subspan(b, 1), batch.seq_len_bound.subspan(b, 1), batch.exact};
    try {
      (void)plan(attention, alone, limits, hints);
      return false;
    } catch (const Error&) {
      return true;
    }
  };
  std::size_t b = 0;
  while (b + 1 < batch.query_len.size() && !fails(b)) {
    ++b;
  }
  const std::string path(name_of(*hints.force));
  const std::string reasons =
      error.actual().starts_with(path + ": ") ? error.actual().substr(path.size() + 2) : error.actual();
  return {"--force", error.expected(), error.actual(),
          fmt::format("{} cannot serve request {} ({}+{}): {}", path, b, batch.query_len[b],
                      batch.seq_len_bound[b] - batch.query_len[b], reasons)};
}

}  // namespace

LayerWeights ModelSource::weights(std::int64_t layer, DType compute, std::uint64_t seed) const {
  if (!folder) {
    return random_layer_weights(config, layer, compute, seed);
  }
  return load_layer_weights(*folder, config, layer, 0, compute);
}

ModelSource find_model(const std::string& model, std::int64_t tp, Reading reading) {
  ModelSource source;
  source.name = model;
  if (is_there(model)) {
    source.config = load_model_config(model, reading);
    if (has_weights(model)) {
      source.folder = model;
    }
  } else if (model.find('/') != std::string::npos) {
    throw Error("--model", "a folder with a config.json, or the name of a preset",
                fmt::format("\"{}\", which does not exist", model));
  } else {
    source.is_preset = true;
    source.config = named_preset(model, reading);
  }
  source.total_heads = source.config.geometry.num_heads;
  source.config = named("--tp", [&] { return source.config.shard(tp); });
  return source;
}

std::int64_t chosen_layer(const ModelConfig& config, const std::optional<std::int64_t>& layer) {
  if (!layer) {
    return config.first_attention_layer();
  }
  if (*layer >= config.num_layers) {
    throw Error("--layer", fmt::format("one of layers {}", attention_layers(config)),
                fmt::format("{} of a model with {}", *layer, counted(config.num_layers, "layer")));
  }
  if (config.layer_kinds[static_cast<std::size_t>(*layer)] == LayerKind::linear_attention) {
    throw Error("--layer", fmt::format("one of layers {}", attention_layers(config)),
                fmt::format("{}, which is linear attention", *layer));
  }
  return *layer;
}

Attention attention_of(const ModelConfig& config, std::int64_t layer, const Options& options) {
  Attention attention;
  attention.geometry = config.geometry;
  attention.rule = config.selection_rule(layer);
  if (options.selection.kind != SelectionSource::Kind::indexer) {
    attention.rule = SelectionRule::opaque(attention.rule.width());
  }
  attention.scale = config.softmax_scale;
  attention.compute = options.compute;
  attention.format = options.format();
  attention.validate();
  return attention;
}

Plan plan_step(const Attention& attention, const Batch& batch, const Options& options, const Target& target) {
  Limits limits;
  limits.workspace_bytes = options.workspace_limit;
  limits.device = target.device;
  Hints hints;
  hints.force = options.force;
  hints.profile = target.profile;
  try {
    return plan(attention, batch, limits, hints);
  } catch (const Error& error) {
    if (error.argument() == "force") {
      throw forced_path_error(attention, batch, limits, hints, error);
    }
    if (error.argument() == "limits.workspace_bytes") {
      error.throw_for("--workspace-limit");
    }
    throw;
  }
}

void tell_notes(const ModelConfig& config) {
  for (const ConfigNote& one : config.notes) {
    note(fmt::format("note: {}: {}; {}", one.field, one.found, one.chosen));
  }
}

void add_reading(Json& document, const ModelConfig& config) {
  document["reading"] = name_of(config.reading);
  document["notes"] = Json::array();
  for (const ConfigNote& one : config.notes) {
    document["notes"].push_back({{"field", one.field}, {"found", one.found}, {"chosen", one.chosen}});
  }
}

void note_long_requests(const ModelConfig& config, const std::vector<RequestSpec>& batch) {
  const auto longest = std::max_element(
      batch.begin(), batch.end(), [](const RequestSpec& a, const RequestSpec& b) { return a.seq_len() < b.seq_len(); });
  if (longest != batch.end() && longest->seq_len() > config.max_position_embeddings) {
    note(
        fmt::format("note: request {} is longer than the {} positions that the model was made for "
                    "(max_position_embeddings)",
                    longest->to_string(), config.max_position_embeddings));
  }
}

std::string describe(const ModelSource& model, std::int64_t layer, const Attention& attention, const Device& device,
                     std::size_t width) {
  const Geometry& g = attention.geometry;
  const std::string heads = g.num_heads == model.total_heads
                                ? fmt::format("{} heads", g.num_heads)
                                : fmt::format("{} of {} heads", g.num_heads, model.total_heads);
  return wrapped(fmt::format("{} layer {}: {}, R {}, nope/rope/v {}/{}/{}, selection rule {}", model.name, layer, heads,
                             g.kv_lora_rank, g.qk_nope_head_dim, g.qk_rope_head_dim, g.v_head_dim,
                             attention.rule.to_string()),
                 width, 2) +
         wrapped(
             fmt::format("{}, cache {}, {}", name_of(attention.compute), name_of(attention.format), describe(device)),
             width, 2);
}

}  // namespace headrace::app
