// SPDX-License-Identifier: Apache-2.0
#include "model_source.h"

#include <fmt/core.h>

#include <algorithm>
#include <system_error>

#include "commands.h"

namespace headrace::app {
namespace {

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

bool has_weights(const std::filesystem::path& folder) {
  return is_there(folder / "model.safetensors") || is_there(folder / "model.safetensors.index.json");
}

}  // namespace

LayerWeights ModelSource::weights(std::int64_t layer, DType compute, std::uint64_t seed) const {
  return folder ? load_layer_weights(*folder, config, layer, 0, compute)
                : random_layer_weights(config, layer, compute, seed);
}

ModelSource find_model(const std::string& model, std::int64_t tp) {
  ModelSource source;
  source.name = model;
  if (is_there(model)) {
    source.config = load_model_config(model);
    if (has_weights(model)) {
      source.folder = model;
    }
  } else if (model.find('/') != std::string::npos) {
    throw Error("--model", "a folder with a config.json, or the name of a preset",
                fmt::format("\"{}\", which does not exist", model));
  } else {
    source.config = named("--model", [&] { return preset(model); });
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
    throw Error("--layer", fmt::format("a layer in [0, {})", config.num_layers), fmt::format("{}", *layer));
  }
  if (config.layer_kinds[static_cast<std::size_t>(*layer)] == LayerKind::linear_attention) {
    throw Error("--layer", "a layer with multi-head latent attention", fmt::format("{}, linear attention", *layer));
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

Profile chosen_profile(const Options& options) {
  if (options.profile == "nominal") {
    return Profile::nominal_cpu(options.compute);
  }
  if (options.profile != "auto") {
    return load_profile(options.profile);
  }
  const std::filesystem::path kept = profile_path(options.compute, options.threads);
  if (!kept.empty() && is_there(kept)) {
    try {
      Profile profile = load_profile(kept);
      if (profile.name == machine_name()) {
        return profile;
      }
    } catch (const Error& error) {
      fmt::print(stderr, "headrace: measuring anew: {}\n", error.what());
    }
  }
  Profile profile = measure_profile(options.compute, options.threads);
  if (!kept.empty()) {
    try {
      save_profile(profile, kept);
    } catch (const Error& error) {
      fmt::print(stderr, "headrace: this machine's rates could not be kept: {}\n", error.what());
    }
  }
  return profile;
}

Plan plan_step(const Attention& attention, const Batch& batch, const Options& options, const Profile& profile) {
  Limits limits;
  limits.workspace_bytes = options.workspace_limit;
  limits.device.threads = options.threads;
  Hints hints;
  hints.force = options.force;
  hints.profile = profile;
  try {
    return plan(attention, batch, limits, hints);
  } catch (const Error& error) {
    if (error.argument() == "force") {
      throw ForcedPathError("--force", error.expected(), error.actual());
    }
    throw;
  }
}

std::string describe(const ModelSource& model, std::int64_t layer, const Attention& attention, int threads) {
  const Geometry& g = attention.geometry;
  const std::string heads = g.num_heads == model.total_heads
                                ? fmt::format("{} heads", g.num_heads)
                                : fmt::format("{} of {} heads", g.num_heads, model.total_heads);
  return fmt::format("{} layer {}: {}, R {}, nope/rope/v {}/{}/{}, selection rule {}\n{}, cache {}, cpu with {} {}",
                     model.name, layer, heads, g.kv_lora_rank, g.qk_nope_head_dim, g.qk_rope_head_dim, g.v_head_dim,
                     attention.rule.to_string(), name_of(attention.compute), name_of(attention.format), threads,
                     threads == 1 ? "thread" : "threads");
}

}  // namespace headrace::app
