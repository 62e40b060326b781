// SPDX-License-Identifier: Apache-2.0
#include "support/configs.h"

#include <algorithm>

#include "support/errors.h"

namespace headrace::test {

using nlohmann::json;

namespace {

json common() {
  return {{"hidden_size", 256}, {"num_hidden_layers", 8}, {"num_attention_heads", 4},       {"num_key_value_heads", 4},
          {"q_lora_rank", 96},  {"kv_lora_rank", 128},    {"qk_nope_head_dim", 32},         {"qk_rope_head_dim", 16},
          {"v_head_dim", 48},   {"rms_norm_eps", 1e-5},   {"max_position_embeddings", 4096}};
}

json with_rope(json config) {
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 50000.0}};
  return config;
}

json with_indexer(json config) {
  config["index_topk"] = 64;
  config["index_n_heads"] = 2;
  config["index_head_dim"] = 32;
  return config;
}

}  // namespace

json config_of(const std::string& model_type) {
  if (model_type == "glm5_next") {
    json text = with_indexer(common());
    text["qk_rope_head_dim"] = 0;
    text["index_kpool"] = 4;
    text["index_kpool_always_select_tail"] = true;
    const std::string l = "linear_attention";
    const std::string s = "deepseek_sparse_attention";
    text["layer_types"] = {l, l, s, s, l, s, l, s};
    return {{"model_type", model_type}, {"text_config", text}};
  }
  json config = with_rope(common());
  if (model_type == "deepseek_v32" || model_type == "glm_moe_dsa") {
    config = with_indexer(config);
  }
  config["model_type"] = model_type;
  return config;
}

json& text_of(json& config) { return config.contains("text_config") ? config["text_config"] : config; }

std::string path_of(const json& config, const std::string& field) {
  return (config.contains("text_config") ? "text_config." : "") + field;
}

ModelConfig parse(const json& config, Reading reading) {
  return parse_model_config(config.dump(), "config.json", reading);
}

std::optional<ConfigNote> note_on(const ModelConfig& config, const std::string& field) {
  const auto found = std::find_if(config.notes.begin(), config.notes.end(),
                                  [&](const ConfigNote& note) { return note.field == field; });
  return found == config.notes.end() ? std::nullopt : std::optional(*found);
}

::testing::AssertionResult refuses(const json& config, const std::string& message, Reading reading) {
  return throws_error([&] { (void)parse(config, reading); }, message);
}

std::string letters(const std::vector<bool>& shares) {
  std::string result;
  for (const bool s : shares) {
    result += s ? 'S' : 'F';
  }
  return result;
}

const std::vector<std::string>& model_types() {
  static const std::vector<std::string> kTypes = {"deepseek_v2", "deepseek_v3",   "kimi_k2",  "deepseek_v32",
                                                  "glm_moe_dsa", "glm4_moe_lite", "glm5_next"};
  return kTypes;
}

}  // namespace headrace::test
