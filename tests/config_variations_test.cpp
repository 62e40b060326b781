// SPDX-License-Identifier: Apache-2.0
// Variations of published configurations, each read both ways and compared with what transformers' own configuration
// classes made of it (tests/data/config_variations.json, which tools/config_table.py writes).
//
// To transformers the right layer is the one of the table, in everything that decides it: dims, heads, the query's
// rank, the kind of each layer, which layers share a selection, the indexer, theta, YaRN, how dims are paired, the
// epsilon of the latent norms, the softmax scale.
//
// To engines it is the same layer, changed by the differences that docs/configurations.md lists. They are written down
// here a second time (`as_engines`), by hand: vLLM did not read these configurations. Two things are vLLM's own, for
// the architectures of its deepseek_v2.py: which layers share, and what YaRN scales sines and cosines by (or that it
// cannot compute with the fields). tools/config_table.py ran vLLM's statements on each configuration for that. Nothing
// is of SGLang.
//
// A case passes where the parser gives the right layer. It may refuse instead, with an error that names the field that
// was varied, where transformers has no layer either, or for a reason of kRefusals.
// Where transformers has no layer the parser may also give one, with a note that names the field.
// Beside a right layer notes are free, but each difference between the readings must be told by one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "geometry/presets.h"
#include "headrace/error.h"
#include "headrace/model.h"
#include "layer/rope.h"
#include "support/configs.h"
#include "support/files.h"

namespace headrace {
namespace {

using nlohmann::json;

struct Case {
  std::string name;
  std::string base;
  std::string change;
  json config;
  std::vector<std::string> fields;  // that were varied
  std::optional<json> layer;        // of transformers; nothing: it has none
  json vllm;                        // what vLLM's statements gave; null where none were run
};

const json& table() {
  static const json kTable = json::parse(test::read_file(HEADRACE_TEST_DATA "/config_variations.json"));
  return kTable;
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const json& entry : table()["cases"]) {
    Case one;
    one.change = entry["change"];
    one.base = entry["base"];
    one.name = fmt::format("{}: {} {}", entry["base"].get<std::string>(), one.change, entry["patch"].dump());
    one.config = table()["bases"].at(entry["base"].get<std::string>()).patch(entry["patch"]);
    one.fields = entry["fields"].get<std::vector<std::string>>();
    if (entry.contains("layer")) {
      one.layer = entry["layer"];
    }
    one.vllm = entry.value("vllm", json());
    result.push_back(std::move(one));
  }
  return result;
}

bool names_a_field(const std::string& text, const std::vector<std::string>& fields) {
  return std::any_of(fields.begin(), fields.end(),
                     [&](const std::string& field) { return text.find(field) != std::string::npos; });
}

bool notes_a_field(const ModelConfig& config, const std::vector<std::string>& fields) {
  return std::any_of(config.notes.begin(), config.notes.end(),
                     [&](const ConfigNote& note) { return names_a_field(note.field, fields); });
}

/// The same, also where a note on another field tells of one of these.
bool tells_of_a_field(const ModelConfig& config, const std::vector<std::string>& fields) {
  return std::any_of(config.notes.begin(), config.notes.end(),
                     [&](const ConfigNote& note) { return names_a_field(note.field + " " + note.found, fields); });
}

// ---- what a reading gave, as the table writes layers ----

std::string letters_of(const ModelConfig& config) {
  std::string letters;
  for (const LayerKind kind : config.layer_kinds) {
    letters += kind == LayerKind::sparse_attention ? 'S' : kind == LayerKind::full_attention ? 'F' : 'L';
  }
  return letters;
}

double mscale_of(double factor, double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

double number_or(const json& fields, const char* key, double fallback) {
  return fields.contains(key) && !fields[key].is_null() ? fields[key].get<double>() : fallback;
}

// What transformers multiplies sines and cosines with.
double attention_factor(const json& yarn) {
  const double factor = yarn["factor"].get<double>();
  const double mscale = number_or(yarn, "mscale", 0.0);
  const double all_dim = number_or(yarn, "mscale_all_dim", 0.0);
  const double made =
      mscale != 0.0 && all_dim != 0.0 ? mscale_of(factor, mscale) / mscale_of(factor, all_dim) : mscale_of(factor, 1.0);
  return number_or(yarn, "attention_factor", made);
}

class Difference {
 public:
  template <class A, class B>
  void expect(const char* what, const A& got, const B& expected) {
    if (!(got == expected)) {
      text_ += fmt::format("{}: got {}, expected {}\n", what, json(got).dump(), json(expected).dump());
    }
  }
  void expect_near(const char* what, double got, double expected) {
    if (!(std::abs(got - expected) <= 1e-12 * std::abs(expected))) {
      expect(what, got, expected);
    }
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void compare_rope(Difference& difference, const Rope& rope, const json& layer) {
  if (layer["rope"] == 0) {
    return;
  }
  difference.expect("theta", rope.theta, layer["theta"].get<double>());
  difference.expect("interleave", rope.interleave, layer["interleave"].get<bool>());
  difference.expect("yarn", rope.yarn.has_value(), !layer["yarn"].is_null());
  if (!rope.yarn || layer["yarn"].is_null()) {
    return;
  }
  const json& yarn = layer["yarn"];
  difference.expect("factor", rope.yarn->factor, yarn["factor"].get<double>());
  difference.expect("original_max_position_embeddings", rope.yarn->original_max_position_embeddings,
                    yarn["original_max_position_embeddings"].get<std::int64_t>());
  difference.expect("beta_fast", rope.yarn->beta_fast, yarn["beta_fast"].get<double>());
  difference.expect("beta_slow", rope.yarn->beta_slow, yarn["beta_slow"].get<double>());
  difference.expect("truncate", rope.yarn->truncate, yarn["truncate"].get<bool>());
  difference.expect_near("attention factor", layer::rope_frequencies(rope).attention_factor, attention_factor(yarn));
}

void compare_indexer(Difference& difference, const std::optional<IndexerGeometry>& indexer, const json& layer) {
  const json& expected = layer["indexer"];
  difference.expect("indexer", indexer.has_value(), !expected.is_null());
  if (!indexer || expected.is_null()) {
    return;
  }
  difference.expect("index heads", indexer->num_heads, expected["heads"].get<std::int64_t>());
  difference.expect("index dim", indexer->head_dim, expected["dim"].get<std::int64_t>());
  difference.expect("topk", indexer->topk, expected["topk"].get<std::int64_t>());
  difference.expect("index rope dim", indexer->rope_dim, layer["rope"].get<std::int64_t>());
  if (indexer->rope_dim > 0) {
    difference.expect("index interleave", indexer->rope_interleave, expected["interleave"].get<bool>());
  }
  difference.expect("kpool", indexer->kpool, expected["kpool"].get<bool>());
  difference.expect("pool", indexer->pool, expected["pool"].get<std::int64_t>());
  difference.expect("tail", indexer->tail, expected["tail"].get<bool>());
}

/// Nothing where the configuration gives this layer.
std::string difference_from(const ModelConfig& config, const json& layer) {
  Difference difference;
  const auto dim = [&](const char* key) { return layer[key].get<std::int64_t>(); };
  difference.expect("hidden_size", config.hidden_size, dim("hidden_size"));
  difference.expect("positions", config.max_position_embeddings, dim("positions"));
  difference.expect("heads", config.geometry.num_heads, dim("heads"));
  difference.expect("R", config.geometry.kv_lora_rank, dim("R"));
  difference.expect("nope", config.geometry.qk_nope_head_dim, dim("nope"));
  difference.expect("rope", config.geometry.qk_rope_head_dim, dim("rope"));
  difference.expect("v", config.geometry.v_head_dim, dim("v"));
  difference.expect("rope.dim", config.rope.dim, dim("rope"));
  difference.expect("q_lora_rank", config.q_lora_rank.value_or(0),
                    layer["q_lora_rank"].is_null() ? 0 : dim("q_lora_rank"));
  difference.expect("bias", false, layer["bias"].get<bool>());
  difference.expect("kv epsilon", config.kv_a_norm_epsilon, layer["epsilon"].get<double>());
  difference.expect("q epsilon", config.q_a_norm_epsilon, layer["epsilon"].get<double>());
  difference.expect_near("scale", config.softmax_scale, layer["scale"].get<double>());
  difference.expect("layers", config.num_layers, static_cast<std::int64_t>(layer["kinds"].get<std::string>().size()));
  difference.expect("kinds", letters_of(config), layer["kinds"].get<std::string>());
  difference.expect("shares", test::letters(config.shares_selection), layer["shares"].get<std::string>());
  compare_rope(difference, config.rope, layer);
  compare_indexer(difference, config.indexer, layer);
  return difference.text();
}

// ---- what engines make of a configuration that transformers reads as `layer` ----

struct EnginesLayer {
  std::optional<json> layer;        // nothing: refused
  std::set<std::string> differ_by;  // the fields that make it another than transformers'
  std::string missing;              // a field that is required, or is no value of its kind
};

bool is_nested(const json& config) {
  return config["model_type"] == "glm5_next" && config.contains("text_config") && !config["text_config"].is_null();
}

bool says(const json& fields, const char* key) { return fields.contains(key) && !fields[key].is_null(); }

// Which layers share by the fields of IndexCache, of the layers that select; for what vLLM has not been asked.
std::string sharing(const json& fields, const std::string& kinds, std::string* key) {
  std::string shares(kinds.size(), 'F');
  const auto set = [&](const char* name, const auto& shared) {
    *key = name;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      shares[i] = kinds[i] == 'S' && shared(i) ? 'S' : 'F';
    }
  };
  if (says(fields, "indexer_types")) {
    set("indexer_types", [&](std::size_t i) { return fields["indexer_types"].at(i) == "shared"; });
  } else if (says(fields, "index_topk_pattern")) {
    const json& pattern = fields["index_topk_pattern"];
    set("index_topk_pattern", [&](std::size_t i) {
      return pattern.is_string() ? pattern.get<std::string>().at(i) == 'S' : pattern.at(i) == "S";
    });
  } else if (fields.contains("index_topk_freq")) {
    const auto freq = fields["index_topk_freq"].get<std::int64_t>();
    const std::int64_t offset = fields.value("index_skip_topk_offset", std::int64_t{2});
    set("index_topk_freq", [&](std::size_t i) {
      return std::max<std::int64_t>(static_cast<std::int64_t>(i) - offset + 1, 0) % freq != 0;
    });
  }
  return shares;
}

void engines_indexer(EnginesLayer& engines, const json& fields, const std::string& type, const json& vllm) {
  json& layer = *engines.layer;
  if (type == "deepseek_v3" && says(fields, "index_topk")) {
    engines.differ_by.insert("index_topk");
    for (const char* key : {"index_n_heads", "index_head_dim"}) {
      if (!fields.contains(key) || !fields[key].is_number_integer()) {
        engines.missing = key;
        return;
      }
    }
    layer["kinds"] = std::string(layer["kinds"].get<std::string>().size(), 'S');
    layer["indexer"] = {{"heads", fields["index_n_heads"]},
                        {"dim", fields["index_head_dim"]},
                        {"topk", fields["index_topk"]},
                        {"interleave", false},
                        {"kpool", false},
                        {"pool", 1},
                        {"tail", false}};
  }
  if (layer["indexer"].is_null()) {
    return;
  }
  const json given = fields.value("indexer_rope_interleave", json(false));
  if (!given.is_boolean()) {
    engines.missing = "indexer_rope_interleave";
    return;
  }
  const bool interleave = given.get<bool>();
  const bool sparse_anyway = !engines.differ_by.contains("index_topk");  // else that difference is told for all
  if (sparse_anyway && layer["rope"] != 0 && interleave != layer["indexer"]["interleave"].get<bool>()) {
    engines.differ_by.insert("indexer_rope_interleave");
  }
  layer["indexer"]["interleave"] = interleave;
  std::string key;
  std::string shares = sharing(fields, layer["kinds"], &key);
  if (vllm.contains("shares") && !says(fields, "indexer_types")) {  // which vLLM does not read, but SGLang
    shares = vllm["shares"].get<std::string>();
  }
  if (sparse_anyway && shares != layer["shares"].get<std::string>()) {
    engines.differ_by.insert(key);
  }
  layer["shares"] = shares;
}

void engines_yarn(EnginesLayer& engines, const json& fields, const json& vllm) {
  json& layer = *engines.layer;
  if (layer["yarn"].is_null() || layer["rope"] == 0) {
    return;
  }
  json& yarn = layer["yarn"];
  const json& rope = says(fields, "rope_scaling") && !fields["rope_scaling"].empty() ? fields["rope_scaling"]
                                                                                     : fields["rope_parameters"];
  const double factor = yarn["factor"].get<double>();
  const double by_hand = mscale_of(factor, number_or(rope, "mscale", 1.0)) /
                         mscale_of(factor, number_or(rope, "mscale_all_dim", 0.0)) *
                         number_or(rope, "attn_factor", 1.0);
  const double engines_factor = number_or(vllm, "mscale", by_hand);
  if (std::abs(engines_factor - attention_factor(yarn)) > 1e-9) {
    constexpr std::array kKeys = {"attention_factor", "attn_factor", "mscale", "mscale_all_dim"};
    const auto* key = std::find_if(kKeys.begin(), kKeys.end(), [&](const char* one) { return says(rope, one); });
    engines.differ_by.insert(key == kKeys.end() ? kKeys.front() : *key);
  }
  yarn["attention_factor"] = engines_factor;
  if (yarn["truncate"] == false) {
    engines.differ_by.insert("truncate");
    yarn["truncate"] = true;
  }
}

EnginesLayer as_engines(const Case& one) {
  EnginesLayer engines{one.layer, {}, {}};
  const json& fields = is_nested(one.config) ? one.config["text_config"] : one.config;
  const std::string type = one.config["model_type"];
  if (!fields.contains("rms_norm_eps")) {
    engines.missing = "rms_norm_eps";
    return engines;
  }
  if ((*engines.layer)["epsilon"] != fields["rms_norm_eps"]) {
    engines.differ_by.insert("rms_norm_eps");
  }
  (*engines.layer)["epsilon"] = fields["rms_norm_eps"];
  if (one.vllm.contains("none")) {
    engines.missing = "what vLLM computes with: " + one.vllm["none"].get<std::string>();
    return engines;
  }
  try {
    engines_indexer(engines, fields, type, one.vllm);
  } catch (const json::exception&) {
    engines.missing = "a value of the right type";  // of a field that transformers does not look at
  }
  engines_yarn(engines, fields, one.vllm);
  return engines;
}

// ---- the property ----

struct Outcome {
  std::optional<ModelConfig> config;
  std::string error;
};

Outcome outcome_of(const Case& one, Reading reading) {
  try {
    return {parse_model_config(one.config.dump(), "config.json", reading), {}};
  } catch (const Error& error) {
    return {std::nullopt, error.what()};
  }
}

// ---- what the parser may refuse though transformers reads it ----

const json& text_of(const Case& one) { return is_nested(one.config) ? one.config["text_config"] : one.config; }

bool is_sparse(const Case& one) { return !(*one.layer)["indexer"].is_null(); }

// The object of rope that is taken.
json rope_of(const json& fields) {
  const bool scaling = says(fields, "rope_scaling") && !fields["rope_scaling"].empty();
  const json rope = fields.value(scaling ? "rope_scaling" : "rope_parameters", json());
  return rope.is_object() ? rope : json::object();
}

bool asks_for(const json& fields, const char* key, const json& value) {
  return fields.contains(key) && fields[key] == value;
}

struct Refusal {
  const char* reason;
  bool (*applies)(const Case& one);
};

const std::array kRefusals = {
    Refusal{"a dim that we require, and that transformers fills in with its class's default",
            [](const Case& one) {
              std::vector<const char*> keys = {"hidden_size",      "num_hidden_layers", "kv_lora_rank",
                                               "qk_nope_head_dim", "v_head_dim",        "num_attention_heads",
                                               "q_lora_rank",      "qk_rope_head_dim",  "max_position_embeddings"};
              if (is_sparse(one)) {
                keys.insert(keys.end(), {"index_topk", "index_n_heads", "index_head_dim"});
              }
              return std::any_of(keys.begin(), keys.end(),
                                 [&](const char* key) { return !text_of(one).contains(key); });
            }},
    Refusal{"an epsilon that we require, and that transformers fills in where its norms use it",
            [](const Case& one) {
              return one.config["model_type"].get<std::string>().starts_with("glm5_next") &&
                     !text_of(one).contains("rms_norm_eps");
            }},
    Refusal{"a theta that we require, and that transformers fills in",
            [](const Case& one) {
              return (*one.layer)["rope"] != 0 && !text_of(one).contains("rope_theta") &&
                     !rope_of(text_of(one)).contains("rope_theta");
            }},
    Refusal{"an object in rope's, which transformers ignores: elsewhere it is a rope for some layers",
            [](const Case& one) {
              const json rope = rope_of(text_of(one));
              return std::any_of(rope.begin(), rope.end(), [](const json& value) { return value.is_object(); });
            }},
    Refusal{"biases, which we do not compute",
            [](const Case& one) { return asks_for(text_of(one), "attention_bias", true); }},
    Refusal{"rope on a part of its dims, which transformers ignores in plain rope",
            [](const Case& one) {
              return asks_for(text_of(one), "partial_rotary_factor", 0.5) ||
                     asks_for(rope_of(text_of(one)), "partial_rotary_factor", 0.5);
            }},
    Refusal{"another pairing of rope's dims than the architecture has to transformers, but SGLang reads it",
            [](const Case& one) {
              return asks_for(text_of(one), "rope_interleave", false) && (*one.layer)["interleave"] == true;
            }},
    Refusal{"layers of linear attention that transformers does not read, and that contradict layer_types",
            [](const Case& one) {
              return text_of(one).contains("linear_attn_config") && says(text_of(one), "layer_types");
            }},
    Refusal{"a field that transformers does not read, of another type than engines need",
            [](const Case& one) {
              const json given = text_of(one).value("indexer_rope_interleave", json(false));
              return is_sparse(one) && !given.is_boolean();
            }},
    Refusal{"two fields on which layers share, which contradict each other",
            [](const Case& one) {
              constexpr std::array kKeys = {"indexer_types", "index_topk_pattern", "index_topk_freq"};
              return std::count_if(kKeys.begin(), kKeys.end(),
                                   [&](const char* key) { return says(text_of(one), key); }) > 1;
            }},
};

bool may_refuse(const Case& one) {
  return !one.layer ||
         std::any_of(kRefusals.begin(), kRefusals.end(), [&](const Refusal& refusal) { return refusal.applies(one); });
}

void expect_refusal_is_fair(const Case& one, const std::string& error, bool expected) {
  EXPECT_TRUE(expected || may_refuse(one)) << "refused: " << error;
  EXPECT_TRUE(names_a_field(error, one.fields)) << "an error that names no varied field: " << error;
}

TEST(Variations, AreReadAsTransformersReadsThem) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    const Outcome outcome = outcome_of(one, Reading::transformers);
    if (!outcome.config) {
      expect_refusal_is_fair(one, outcome.error, false);
    } else if (one.layer) {
      EXPECT_EQ(difference_from(*outcome.config, *one.layer), "");
    } else {
      EXPECT_TRUE(tells_of_a_field(*outcome.config, one.fields)) << "no layer to transformers, and nothing is said";
    }
  }
}

TEST(Variations, AreReadAsEnginesReadThem) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    const Outcome outcome = outcome_of(one, Reading::engines);
    if (!one.layer) {
      EXPECT_TRUE(outcome.config ? tells_of_a_field(*outcome.config, one.fields)
                                 : names_a_field(outcome.error, one.fields));
      continue;
    }
    const EnginesLayer engines = as_engines(one);
    if (!outcome.config) {
      expect_refusal_is_fair(one, outcome.error, !engines.missing.empty());
      continue;
    }
    ASSERT_EQ(engines.missing, "");
    EXPECT_EQ(difference_from(*outcome.config, *engines.layer), "");
  }
}

TEST(Variations, DifferWhereTheReadingsDoAndSaySo) {
  std::map<std::string, int> told;
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    const Outcome both[] = {outcome_of(one, Reading::engines), outcome_of(one, Reading::transformers)};
    if (!one.layer || !both[0].config || !both[1].config) {
      EXPECT_FALSE(both[0].config && both[0].config->readings_differ && !both[1].config);
      continue;
    }
    const EnginesLayer engines = as_engines(one);
    for (const Outcome& outcome : both) {
      EXPECT_EQ(outcome.config->readings_differ, !engines.differ_by.empty());
      for (const std::string& field : engines.differ_by) {
        EXPECT_TRUE(notes_a_field(*outcome.config, {field})) << field << " differs, and nothing is said";
        ++told[field];
      }
    }
  }
  for (const char* field : {"rms_norm_eps", "index_topk", "index_topk_freq", "indexer_rope_interleave"}) {
    EXPECT_GT(told[field], 0) << field;
  }
}

TEST(Variations, AreManyAndManyOfChangedLayersAreCompared) {
  std::map<std::string, json> of_base;
  std::map<std::string, int> changes;
  int compared = 0;
  int compared_with_vllm = 0;
  int refused = 0;
  for (const Case& one : cases()) {
    const Outcome outcome = outcome_of(one, Reading::transformers);
    if (one.change == "none") {
      EXPECT_TRUE(outcome.config) << one.name << ": " << outcome.error;
      of_base[one.base] = *one.layer;
      continue;
    }
    ++changes[one.change];
    const bool changed = one.layer && *one.layer != of_base[one.base];
    compared += changed && outcome.config ? 1 : 0;
    refused += one.layer && !outcome.config ? 1 : 0;
    compared_with_vllm += changed && !one.vllm.is_null() && outcome_of(one, Reading::engines).config ? 1 : 0;
  }
  for (const char* change : {"drop", "rename", "retype", "nest", "add"}) {
    EXPECT_GE(changes[change], 30) << change;
  }
  EXPECT_GE(changes["vary"], 200);
  EXPECT_GE(compared, 200);
  EXPECT_GE(compared_with_vllm, 60);
  EXPECT_LE(refused, 130);  // for the reasons of kRefusals
}

TEST(Variations, EachReasonForARefusalIsNeeded) {
  for (const Refusal& refusal : kRefusals) {
    int used = 0;
    for (const Case& one : cases()) {
      used += one.layer && refusal.applies(one) && !outcome_of(one, Reading::engines).config ? 1 : 0;
    }
    EXPECT_GT(used, 0) << refusal.reason;
  }
}

TEST(Variations, AreOfThePresets) {
  EXPECT_EQ(table()["transformers"], "5.17.0");
  EXPECT_EQ(table()["vllm"], "0.26");
  for (const EmbeddedPreset& preset : embedded_presets()) {
    EXPECT_EQ(table()["bases"].value(std::string(preset.name), json()), json::parse(preset.json))
        << preset.name << ": make the table anew with tools/config_table.py";
  }
}

}  // namespace
}  // namespace headrace
