// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "headrace/model.h"
#include "support/configs.h"
#include "support/errors.h"

namespace headrace {
namespace {

using nlohmann::json;
using test::config_of;
using test::letters;
using test::note_on;
using test::parse;
using test::refuses;
using test::throws_error;

TEST(Layers, ReadsLayerTypes) {
  using enum LayerKind;
  EXPECT_EQ(parse(config_of("glm5_next")).layer_kinds,
            (std::vector<LayerKind>{linear_attention, linear_attention, sparse_attention, sparse_attention,
                                    linear_attention, sparse_attention, linear_attention, sparse_attention}));
  json older = config_of("glm5_next");
  older["text_config"]["layer_types"][2] = "full_attention";  // what transformers reads as sparse attention here
  EXPECT_EQ(parse(older).layer_kinds[2], sparse_attention);

  for (const std::string type : {"deepseek_v32", "glm_moe_dsa"}) {
    json config = config_of(type);
    config["layer_types"] = std::vector<std::string>(8, "deepseek_sparse_attention");
    EXPECT_EQ(parse(config).layer_kinds, std::vector<LayerKind>(8, sparse_attention));
    config["layer_types"][6] = "full_attention";
    EXPECT_TRUE(refuses(config, "layer_types[6]: expected a kind that " + type + " has, got \"full_attention\""));
  }
  json dense = config_of("deepseek_v3");
  dense["layer_types"] = std::vector<std::string>(8, "full_attention");
  EXPECT_EQ(parse(dense).layer_kinds, std::vector<LayerKind>(8, full_attention));
  dense["layer_types"][1] = "sliding_attention";
  EXPECT_TRUE(refuses(dense, "layer_types[1]: expected a kind that deepseek_v3 has, got \"sliding_attention\""));
  dense["layer_types"][1] = "linear_attention";
  EXPECT_TRUE(refuses(dense, "layer_types[1]"));
  dense["layer_types"][1] = 3;
  EXPECT_TRUE(refuses(dense, "layer_types[1]: expected a string, got 3"));
  dense["layer_types"] = std::vector<std::string>(7, "full_attention");
  EXPECT_TRUE(refuses(dense, "layer_types: expected an array of 8 strings, one a layer, got an array of 7"));
  dense["layer_types"] = "full_attention";
  EXPECT_TRUE(refuses(dense, "layer_types: expected an array of 8 strings"));

  json linear = config_of("glm5_next");
  linear["text_config"]["layer_types"] = std::vector<std::string>(8, "linear_attention");
  EXPECT_THROW((void)parse(linear).first_attention_layer(), Error);
}

std::string sharing_of(const json& fields) {
  json config = config_of("glm_moe_dsa");
  config.update(fields);
  return letters(parse(config).shares_selection);
}

TEST(Sharing, FollowsTheFieldsInOrderOfPrecedence) {
  const json types = {"full", "shared", "full", "full", "shared", "shared", "shared", "full"};
  const json initials = {"F", "S", "F", "F", "S", "S", "S", "F"};
  EXPECT_EQ(sharing_of(json::object()), "FFFFFFFF");
  EXPECT_EQ(sharing_of({{"indexer_types", types}}), "FSFFSSSF");
  EXPECT_EQ(sharing_of({{"index_topk_pattern", "FSFFSSSF"}}), "FSFFSSSF");
  EXPECT_EQ(sharing_of({{"index_topk_pattern", initials}}), "FSFFSSSF");
  EXPECT_EQ(sharing_of({{"index_topk_freq", 4}, {"index_skip_topk_offset", 3}}), "FFFSSSFS");
  EXPECT_EQ(sharing_of({{"index_topk_freq", 2}, {"index_skip_topk_offset", 1}}), "FSFSFSFS");
  EXPECT_EQ(sharing_of({{"index_topk_freq", 3}}), "FFSSFSSF");  // the offset is 2 by default
  EXPECT_EQ(sharing_of({{"index_topk_freq", 1}, {"index_skip_topk_offset", 5}}), "FFFFFFFF");

  const json schedule = {{"index_topk_freq", 4}, {"index_skip_topk_offset", 3}, {"index_topk_pattern", nullptr}};
  EXPECT_EQ(sharing_of(schedule), "FFFSSSFS");
  json all = schedule;
  all["index_topk_pattern"] = "FFFSSSFS";
  all["indexer_types"] = {"full", "full", "full", "shared", "shared", "shared", "full", "shared"};
  EXPECT_EQ(sharing_of(all), "FFFSSSFS");
}

TEST(Sharing, KnowsOneSpellingOfAListInEachReading) {
  const json words = {"full", "shared", "full", "full", "shared", "shared", "shared", "full"};
  const json letters_list = {"F", "S", "F", "F", "S", "S", "S", "F"};
  const json mixed = {"full", "shared", "F", "S", "full", "S", "shared", "F"};
  struct List {
    const char* type;
    json pattern;
    std::string engines;
    std::string transformers;
    std::string note;  // a part of it; empty: none
  };
  const List lists[] = {
      {"glm_moe_dsa", words, "FFFFFFFF", "FSFFSSSF", "Engines: every layer scores, for in a list only the letter S"},
      {"glm_moe_dsa", letters_list, "FSFFSSSF", "FFFFFFFF", "Transformers: every layer scores, for in a list only the"},
      {"glm_moe_dsa", mixed, "FFFSFSFF", "FSFFFFSF", "Engines: layers with the letter S share. Transformers: layers"},
      {"glm_moe_dsa", "FSFFSSSF", "FSFFSSSF", "FSFFSSSF", ""},
      {"deepseek_v32", words, "FFFFFFFF", "FFFFFFFF", "an array of 8 of words"},
      {"deepseek_v32", letters_list, "FSFFSSSF", "FFFFFFFF",
       "Engines: layers share selections by it. Transformers: ev"},
      {"deepseek_v32", mixed, "FFFSFSFF", "FFFFFFFF", "Engines: layers share selections by it. Transformers: ev"},
  };
  for (const List& list : lists) {
    SCOPED_TRACE(std::string(list.type) + " " + list.pattern.dump());
    json config = config_of(list.type);
    config["rms_norm_eps"] = 1e-6;
    config["indexer_rope_interleave"] = std::string(list.type) == "glm_moe_dsa";
    config["index_topk_pattern"] = list.pattern;
    for (const Reading reading : {Reading::engines, Reading::transformers}) {
      const ModelConfig read = parse(config, reading);
      EXPECT_EQ(letters(read.shares_selection), reading == Reading::engines ? list.engines : list.transformers);
      EXPECT_EQ(read.readings_differ, list.engines != list.transformers);
      const auto note = note_on(read, "index_topk_pattern");
      EXPECT_EQ(note.has_value(), !list.note.empty());
      EXPECT_NE((note ? note->found : "").find(list.note), std::string::npos) << (note ? note->found : "");
    }
  }
}

TEST(Lists, MayGoOnBehindTheLastLayer) {
  const auto read = [](const std::string& type, const char* field, const json& value) {
    json config = config_of(type);
    test::text_of(config)[field] = value;
    const ModelConfig parsed = parse(config);
    const auto note = note_on(parsed, test::path_of(config, field));
    EXPECT_TRUE(note) << field;
    EXPECT_EQ(note ? note->found : "",
              std::to_string(value.size() == 1 ? 10 : value.size()) + " entries, where num_hidden_layers is 8");
    EXPECT_EQ(note ? note->chosen : "", "the first 8 are taken");
    EXPECT_EQ(parsed.layer_kinds.size(), 8U);
    return letters(parsed.shares_selection);
  };
  const json types = {"full", "shared", "full", "full", "shared", "shared", "shared", "full", "shared", "full"};
  EXPECT_EQ(read("glm_moe_dsa", "indexer_types", types), "FSFFSSSF");
  EXPECT_EQ(read("glm_moe_dsa", "index_topk_pattern", "FSFFSSSFSS"), "FSFFSSSF");
  EXPECT_EQ(read("glm_moe_dsa", "index_topk_pattern", {"F", "S", "F", "F", "S", "S", "S", "F", "S", "F"}), "FSFFSSSF");
  EXPECT_EQ(read("glm_moe_dsa", "layer_types", std::vector<std::string>(9, "deepseek_sparse_attention")), "FFFFFFFF");
  json next = config_of("glm5_next")["text_config"]["layer_types"];
  next.push_back("full_attention");
  EXPECT_EQ(read("glm5_next", "layer_types", next), "FFFFFFFF");
}

TEST(KimiK2, IsADeepSeekV3WhereTransformersHasNone) {
  const ModelConfig read = parse(config_of("kimi_k2"), Reading::transformers);
  ASSERT_TRUE(note_on(read, "model_type"));
  EXPECT_EQ(note_on(read, "model_type")->found, "\"kimi_k2\"");
  EXPECT_FALSE(note_on(parse(config_of("kimi_k2")), "model_type"));
  EXPECT_FALSE(note_on(parse(config_of("deepseek_v3"), Reading::transformers), "model_type"));
}

TEST(Sharing, RefusesFieldsThatContradictEachOther) {
  const auto refused = [](const json& fields, const std::string& message) {
    for (const std::string type : {"deepseek_v32", "glm_moe_dsa"}) {
      json config = config_of(type);
      config.update(fields);
      if (!refuses(config, message)) {
        return refuses(config, message);
      }
    }
    return ::testing::AssertionSuccess();
  };
  EXPECT_TRUE(
      refused({{"index_topk_pattern", "FSFFSSSF"}, {"index_topk_freq", 2}},
              "index_topk_freq: expected what index_topk_pattern says: layer 1 shares, got 2, by which it scores"));
  EXPECT_TRUE(refused({{"indexer_types", {"full", "full", "full", "full", "full", "full", "full", "shared"}},
                       {"index_topk_pattern", "FFFFFFFF"}},
                      "index_topk_pattern: expected what indexer_types says: layer 7 shares, got \"FFFFFFFF\""));
  // Layers that do not select cannot contradict.
  json next = config_of("glm5_next");  // MLA layers: 2, 3, 5, 7
  next["text_config"]["indexer_types"] = {"shared", "shared", "full", "full", "shared", "full", "full", "full"};
  next["text_config"]["index_topk_pattern"] = "FFFFFFFF";
  EXPECT_EQ(letters(parse(next).shares_selection), "FFFFFFFF");
}

TEST(Sharing, IsReadByEnginesForEverySparseArchitecture) {
  json config = config_of("deepseek_v32");
  config["rms_norm_eps"] = 1e-6;
  config["use_index_cache"] = true;
  config["index_topk_freq"] = 2;
  config["index_skip_topk_offset"] = 1;
  const ModelConfig engines = parse(config);
  EXPECT_EQ(letters(engines.shares_selection), "FSFSFSFS");
  EXPECT_EQ(engines.selection_source(3), 2);
  EXPECT_TRUE(engines.readings_differ);
  ASSERT_TRUE(note_on(engines, "index_topk_freq"));
  EXPECT_NE(note_on(engines, "index_topk_freq")->chosen.find("engines"), std::string::npos);

  const ModelConfig transformers = parse(config, Reading::transformers);
  EXPECT_EQ(letters(transformers.shares_selection), "FFFFFFFF");
  EXPECT_TRUE(transformers.readings_differ);
  EXPECT_TRUE(note_on(transformers, "index_topk_freq"));

  config["index_topk_freq"] = 1;
  EXPECT_FALSE(parse(config).readings_differ);
  EXPECT_TRUE(parse(config).notes.empty());

  config["index_topk_freq"] = 2;
  config["use_index_cache"] = false;
  EXPECT_EQ(letters(parse(config).shares_selection), "FSFSFSFS");
  EXPECT_TRUE(note_on(parse(config), "use_index_cache"));
}

TEST(IndexTopk, MakesADeepSeekV3SparseToEngines) {
  for (const std::string type : {"deepseek_v3", "kimi_k2"}) {
    SCOPED_TRACE(type);
    json config = config_of("deepseek_v32");
    config["rms_norm_eps"] = 1e-6;
    config["model_type"] = type;
    config["index_topk_freq"] = 2;
    const ModelConfig engines = parse(config);
    EXPECT_EQ(engines.model_type, "deepseek_v32");
    EXPECT_EQ(engines.remade_by, "index_topk");
    EXPECT_EQ(engines.selection_rule(0), SelectionRule::lightning(64));
    EXPECT_EQ(letters(engines.shares_selection), "FFSFSFSF");
    EXPECT_TRUE(engines.readings_differ);
    EXPECT_TRUE(note_on(engines, "index_topk"));

    const ModelConfig transformers = parse(config, Reading::transformers);
    EXPECT_EQ(transformers.model_type, type);
    EXPECT_EQ(transformers.remade_by, "");
    EXPECT_EQ(transformers.selection_rule(0), SelectionRule::none());
    EXPECT_FALSE(transformers.indexer);
    EXPECT_TRUE(transformers.readings_differ);
    EXPECT_TRUE(note_on(transformers, "index_topk"));

    for (const char* field : {"index_n_heads", "index_head_dim"}) {
      json missing = config;
      missing.erase(field);
      EXPECT_TRUE(refuses(missing, std::string(field) + ": expected an integer"));
      EXPECT_TRUE(refuses(missing, "for index_topk makes this a deepseek_v32, got nothing"));
      EXPECT_FALSE(parse(missing, Reading::transformers).readings_differ);
    }
    config["index_topk"] = nullptr;
    config.erase("index_topk_freq");
    EXPECT_EQ(parse(config).selection_rule(0), SelectionRule::none());
  }
}

TEST(Glm5Next, IsReadInEveryFormItIsPublishedIn) {
  const json nested = config_of("glm5_next");
  json flat = nested["text_config"];
  flat["model_type"] = "glm5_next";
  json text = nested["text_config"];
  text["model_type"] = "glm5_next_text";
  EXPECT_EQ(parse(nested).weight_prefix, "model.language_model.layers.");
  for (const json& config : {flat, text}) {
    const ModelConfig read = parse(config);
    EXPECT_EQ(read.model_type, config["model_type"]);
    EXPECT_EQ(read.weight_prefix, "model.layers.");
    EXPECT_EQ(read.layer_kinds, parse(nested).layer_kinds);
    EXPECT_EQ(read.selection_rule(2), SelectionRule::kpool(64, 4, true));
    EXPECT_TRUE(read.notes.empty());
  }
}

TEST(Glm5Next, AttendsInEveryFourthLayerWhereNothingElseIsSaid) {
  using enum LayerKind;
  const std::vector<LayerKind> fourth = {linear_attention, linear_attention, linear_attention, sparse_attention,
                                         linear_attention, linear_attention, linear_attention, sparse_attention};
  json config = config_of("glm5_next");
  config["text_config"].erase("layer_types");
  EXPECT_EQ(parse(config).layer_kinds, fourth);
  EXPECT_TRUE(note_on(parse(config), "text_config.layer_types"));

  config["text_config"]["linear_attn_config"] = {{"kda_layers", {0, 1, 2, 4, 5, 6}}};
  EXPECT_EQ(parse(config).layer_kinds, fourth);
  EXPECT_TRUE(parse(config).notes.empty());

  config["text_config"]["linear_attn_config"]["kda_layers"] = {0, 2, 4, 6};  // vLLM goes by it, transformers does not
  EXPECT_EQ(parse(config).layer_kinds[1], sparse_attention);
  EXPECT_EQ(parse(config, Reading::transformers).layer_kinds, fourth);
  EXPECT_TRUE(parse(config).readings_differ);
  EXPECT_TRUE(note_on(parse(config), "text_config.linear_attn_config.kda_layers"));
  config["text_config"]["layer_types"] = config_of("glm5_next")["text_config"]["layer_types"];
  EXPECT_TRUE(refuses(config, "linear_attn_config.kda_layers: expected the layers of linear attention"));
  config["text_config"]["linear_attn_config"]["kda_layers"] = {0, 8};
  EXPECT_TRUE(refuses(config, "linear_attn_config.kda_layers[1]: expected an integer in [0, 7], got 8"));
  config["text_config"]["linear_attn_config"]["kda_layers"] = "0";
  EXPECT_TRUE(refuses(config, "linear_attn_config.kda_layers: expected an array"));
}

TEST(Sharing, FindsTheSource) {
  json fields = config_of("glm5_next");
  fields["text_config"]["indexer_types"] = {"shared", "shared", "full", "shared", "full", "shared", "full", "full"};
  const ModelConfig config = parse(fields);  // MLA layers: 2, 3, 5, 7
  EXPECT_EQ(letters(config.shares_selection), "FFFSFSFF");
  EXPECT_EQ(config.selection_source(2), 2);
  EXPECT_EQ(config.selection_source(3), 2);
  EXPECT_EQ(config.selection_source(5), 2);  // across a linear layer
  EXPECT_EQ(config.selection_source(7), 7);
  EXPECT_EQ(config.selection_rule(5), SelectionRule::kpool(64, 4, true));
  EXPECT_EQ(config.first_attention_layer(), 2);
  for (const std::int64_t layer : {-1, 0, 4, 6, 8}) {
    EXPECT_THROW((void)config.selection_source(layer), Error) << layer;
  }
  ModelConfig orphan = config;
  orphan.shares_selection[2] = true;
  EXPECT_TRUE(throws_error([&] { (void)orphan.selection_source(5); }, "layer: expected one with a selection"));
}

TEST(Sharing, RefusesImpossibleFields) {
  const auto refused = [](const json& fields, const std::string& message) {
    json config = config_of("glm_moe_dsa");
    config.update(fields);
    return refuses(config, message);
  };
  EXPECT_TRUE(refused({{"indexer_types", {"full"}}}, "indexer_types: expected an array of 8 strings"));
  EXPECT_TRUE(refused({{"indexer_types", "FFFFFFFF"}}, "indexer_types: expected an array of 8 strings"));
  json types = std::vector<std::string>(8, "full");
  types[3] = "half";
  EXPECT_TRUE(refused({{"indexer_types", types}}, "indexer_types[3]: expected \"full\" or \"shared\", got \"half\""));
  types[3] = 1;
  EXPECT_TRUE(refused({{"indexer_types", types}}, "indexer_types[3]: expected a string, got 1"));
  types = std::vector<std::string>(8, "shared");
  EXPECT_TRUE(refused({{"indexer_types", types}}, "indexer_types: expected a layer that scores"));
  EXPECT_TRUE(refused({{"index_topk_pattern", "FSF"}}, "index_topk_pattern: expected 8 letters F or S"));
  EXPECT_TRUE(refused({{"index_topk_pattern", "FSFSFSFX"}}, "index_topk_pattern: expected 8 letters F or S"));
  EXPECT_TRUE(refused({{"index_topk_pattern", ""}}, "index_topk_pattern: expected 8 letters F or S"));
  EXPECT_TRUE(refused({{"index_topk_pattern", "SFFFFFFF"}}, "index_topk_pattern: expected a layer that scores"));
  EXPECT_TRUE(refused({{"index_topk_pattern", {"F", "S", "F", "F", "S", "S", "S", "s"}}},
                      "index_topk_pattern[7]: expected \"F\" or \"S\", or \"full\" or \"shared\", got \"s\""));
  EXPECT_TRUE(refused({{"index_topk_pattern", {"F", "S", "F"}}}, "index_topk_pattern: expected an array of 8 strings"));
  EXPECT_TRUE(refused({{"index_topk_pattern", 4}}, "index_topk_pattern: expected an array of 8 strings"));
  for (const json& bad : {json(0), json(-1), json(2.5), json("4"), json(true), json(1e12)}) {
    EXPECT_TRUE(refused({{"index_topk_freq", bad}}, "index_topk_freq: expected an integer")) << bad;
  }
  EXPECT_TRUE(refused({{"index_skip_topk_offset", -1}}, "index_skip_topk_offset: expected an integer"));
  EXPECT_TRUE(refused({{"index_topk_freq", 4}, {"index_skip_topk_offset", 0}},
                      "index_skip_topk_offset: expected a layer that scores"));
}

TEST(Sharing, ByTypesAloneSaysWhoDoesNotReadThem) {
  const json types = {"full", "full", "full", "full", "full", "shared", "full", "shared"};
  const json schedule = {{"index_topk_pattern", "FFFFFSFS"}, {"index_topk_freq", nullptr}};
  struct Alone {
    const char* type;
    Reading reading;
    std::string shares;
    std::string chosen;  // empty: no note
  };
  const Alone cases[] = {
      {"glm_moe_dsa", Reading::engines, "FFFFFSFS",
       "layers share selections by it, as in SGLang and transformers. vLLM does not read it: there every layer scores"},
      {"glm_moe_dsa", Reading::transformers, "FFFFFSFS", ""},
      {"glm5_next", Reading::engines, "FFFFFSFS",
       "layers share selections by it, as in SGLang and transformers. vLLM does not read it: there every layer scores"},
      {"deepseek_v32", Reading::engines, "FFFFFSFS",
       "layers share selections by it, as in SGLang. vLLM and transformers do not read it: there every layer scores"},
      {"deepseek_v32", Reading::transformers, "FFFFFFFF",
       "ignored, where SGLang shares selections by it. vLLM and transformers do not read it: there every layer scores"},
  };
  for (const Alone& one : cases) {
    SCOPED_TRACE(one.type);
    json config = config_of(one.type);
    const std::string path = test::path_of(config, "indexer_types");
    test::text_of(config)["indexer_types"] = types;
    const ModelConfig read = parse(config, one.reading);
    EXPECT_EQ(letters(read.shares_selection), one.shares);
    EXPECT_EQ(note_on(read, path).value_or(ConfigNote{}).chosen, one.chosen);
    if (!one.chosen.empty()) {
      EXPECT_EQ(note_on(read, path)->found, "an array of 8, beside no index_topk_pattern or index_topk_freq");
    }
    // Beside a pattern vLLM shares by that, and types that share nothing need no note.
    test::text_of(config).update(schedule);
    const auto beside = note_on(parse(config, one.reading), path);
    EXPECT_EQ((beside ? beside->chosen : "").find("vLLM"), std::string::npos);
    test::text_of(config)["index_topk_pattern"] = nullptr;
    test::text_of(config)["indexer_types"] = std::vector<std::string>(8, "full");
    EXPECT_FALSE(note_on(parse(config, one.reading), path));
  }
}

TEST(Sharing, ByTypesBesideAScheduleIsNotedOfTheSchedule) {
  json config = config_of("deepseek_v32");
  config["indexer_types"] = {"full", "shared", "full", "shared", "full", "shared", "full", "shared"};
  config["index_topk_freq"] = 2;
  config["index_skip_topk_offset"] = 1;
  for (const Reading reading : {Reading::engines, Reading::transformers}) {
    const ModelConfig read = parse(config, reading);
    EXPECT_FALSE(note_on(read, "indexer_types"));
    ASSERT_TRUE(note_on(read, "index_topk_freq"));
    EXPECT_EQ(note_on(read, "index_topk_freq")->found,
              "2. Engines: layers share selections by it. Transformers: every layer scores");
  }
}

TEST(Sharing, TakesANullScheduleOnlyWhereItDoesNotDecide) {
  for (const char* field : {"index_topk_freq", "index_skip_topk_offset"}) {
    SCOPED_TRACE(field);
    const json null = {{field, nullptr}};
    json config = config_of("glm_moe_dsa");
    config.update(null);
    EXPECT_TRUE(refuses(config, std::string(field) + ": expected an integer or no such field: vLLM and transformers"));
    config["indexer_types"] = nullptr;  // decides as little
    config["index_topk_pattern"] = nullptr;
    EXPECT_TRUE(refuses(config, std::string(field) + ": expected an integer or no such field"));
    config["index_topk_pattern"] = "FSFFSSSF";
    EXPECT_EQ(letters(parse(config).shares_selection), "FSFFSSSF");
    config["index_topk_pattern"] = nullptr;
    config["indexer_types"] = {"full", "shared", "full", "full", "shared", "shared", "shared", "full"};
    EXPECT_EQ(letters(parse(config).shares_selection), "FSFFSSSF");
  }
}

TEST(Sharing, IsIgnoredWhereTheArchitectureHasNone) {
  for (const std::string type : {"deepseek_v2", "deepseek_v3", "glm4_moe_lite"}) {
    json config = config_of(type);
    config["index_topk_freq"] = 4;
    config["indexer_types"] = std::vector<std::string>(8, "shared");
    const ModelConfig read = parse(config);
    EXPECT_EQ(letters(read.shares_selection), "FFFFFFFF") << type;
    for (const char* field : {"index_topk_freq", "indexer_types"}) {
      ASSERT_TRUE(note_on(read, field)) << type;
      EXPECT_EQ(note_on(read, field)->chosen, "ignored: " + type + " has no indexer");
    }
  }
}

TEST(KPool, HasTransformersDefaults) {
  json config = config_of("glm5_next");
  config["text_config"].erase("index_kpool");
  config["text_config"].erase("index_kpool_always_select_tail");
  EXPECT_EQ(parse(config).selection_rule(2), SelectionRule::kpool(64, 16, true));
  config["text_config"]["index_kpool_always_select_tail"] = false;
  EXPECT_EQ(parse(config).selection_rule(2), SelectionRule::kpool(64, 16, false));
  config["text_config"]["index_kpool"] = 6;
  EXPECT_TRUE(refuses(config, "text_config.index_topk: expected a multiple of index_kpool, 6, got 64"));
  for (const json& bad : {json(0), json(-4), json(65), json(4.0), json("4")}) {
    config["text_config"]["index_kpool"] = bad;
    EXPECT_TRUE(refuses(config, "text_config.index_kpool: expected an integer in [1, 64]")) << bad;
  }
}

TEST(KPool, SaysWhereItsPoolIsADefault) {
  json config = config_of("glm5_next");
  EXPECT_FALSE(note_on(parse(config), "text_config.index_kpool"));
  config["text_config"].erase("index_kpool");
  config["text_config"]["index_n_kpool"] = 4;
  const auto note = note_on(parse(config), "text_config.index_kpool");
  ASSERT_TRUE(note);
  EXPECT_EQ(note->found, "nothing");
  EXPECT_EQ(note->chosen, "16 is taken, as transformers fills it in");
}

TEST(KPool, IsRefusedWithoutCompression) {
  json config = config_of("glm5_next");
  config["text_config"]["index_kpool_compress"] = true;
  EXPECT_TRUE(parse(config).notes.empty());
  for (const json& bad : {json(false), json(0), json(nullptr), json("true")}) {
    config["text_config"]["index_kpool_compress"] = bad;
    for (const Reading reading : {Reading::engines, Reading::transformers}) {
      EXPECT_TRUE(refuses(config, "text_config.index_kpool_compress: expected true", reading)) << bad;
    }
  }
}

TEST(IgnoredFields, AreNotedWhereAnotherArchitectureReadsThem) {
  struct Field {
    const char* type;
    const char* name;
    json value;
    std::string chosen;
  };
  const Field fields[] = {
      {"glm4_moe_lite", "index_topk", 64,
       "ignored: glm4_moe_lite has no indexer to SGLang and transformers. vLLM builds one"},
      {"deepseek_v2", "index_topk", 64,
       "ignored: deepseek_v2 has no indexer to SGLang and transformers. vLLM builds one"},
      {"deepseek_v2", "index_n_heads", 64, "ignored: deepseek_v2 has no indexer"},
      {"deepseek_v2", "index_topk_pattern", "FSFSFSFS", "ignored: deepseek_v2 has no indexer"},
      {"glm_moe_dsa", "index_kpool", 4, "ignored: glm_moe_dsa has no indexer of pools"},
      {"deepseek_v32", "index_kpool_always_select_tail", true, "ignored: deepseek_v32 has no indexer of pools"},
      {"deepseek_v3", "mla_use_nope", true, "ignored: deepseek_v3 always has rope"},
      {"deepseek_v3", "linear_attn_config", {{"kda_layers", {0}}}, "ignored: deepseek_v3 has no linear attention"},
      {"glm_moe_dsa", "head_dim", 192, "ignored: glm_moe_dsa goes by qk_rope_head_dim"},
      {"deepseek_v32", "sliding_window", 4096, "ignored: deepseek_v32 does not read it"},
      {"glm5_next", "attention_sink", true, "ignored: glm5_next does not read it"},
      {"glm5_next", "mla_use_nope", false, "ignored: glm5_next has no rope, whatever it says"},
      {"glm5_next", "rope_theta", 8e6, "ignored: glm5_next has no rope"},
      {"glm5_next", "rope_scaling", {{"type", "yarn"}}, "ignored: glm5_next has no rope"},
  };
  for (const Field& field : fields) {
    SCOPED_TRACE(std::string(field.type) + " " + field.name);
    json config = config_of(field.type);
    const std::string path = test::path_of(config, field.name);
    EXPECT_FALSE(note_on(parse(config), path));
    test::text_of(config)[field.name] = field.value;
    ASSERT_TRUE(note_on(parse(config), path));
    EXPECT_EQ(note_on(parse(config), path)->chosen, field.chosen);
  }
  // Values that say what is so anyway.
  json config = config_of("glm4_moe_lite");
  config["index_topk_freq"] = 1;
  config["indexer_types"] = std::vector<std::string>(8, "full");
  config["index_topk_pattern"] = "FFFFFFFF";
  config["use_index_cache"] = false;
  config["mla_use_nope"] = false;
  config["sliding_window"] = nullptr;
  config["attention_sink"] = false;
  config["rms_norm_eps"] = 1e-6;
  EXPECT_TRUE(parse(config).notes.empty());
}

TEST(IgnoredFields, AreNotedWhereTheyLieInTheWrongPlace) {
  json next = config_of("glm5_next");
  next["layer_types"] = std::vector<std::string>(8, "deepseek_sparse_attention");
  next["hidden_size"] = 256;  // as in text_config
  EXPECT_TRUE(note_on(parse(next), "layer_types"));
  EXPECT_FALSE(note_on(parse(next), "hidden_size"));
  json v3 = config_of("deepseek_v3");
  v3["text_config"] = {{"rope_scaling", {{"type", "yarn"}}}, {"vocab_size", 3}};
  EXPECT_TRUE(note_on(parse(v3), "text_config.rope_scaling"));
  EXPECT_FALSE(note_on(parse(v3), "text_config.vocab_size"));
}

TEST(TextConfig, IsToldWhereRequiredFieldsLieInTheWrongPlace) {
  for (const std::string type : {"deepseek_v3", "deepseek_v32", "glm_moe_dsa"}) {
    const json plain = config_of(type);
    const std::string message = "expected it at the top, where " + type + " has its fields, got it in text_config";
    EXPECT_TRUE(refuses({{"model_type", type}, {"text_config", plain}}, "num_hidden_layers: " + message));
    json one = plain;
    one.erase("v_head_dim");
    one["text_config"] = {{"v_head_dim", 48}};
    EXPECT_TRUE(refuses(one, "v_head_dim: " + message));
    one["text_config"] = nullptr;
    EXPECT_TRUE(refuses(one, "v_head_dim: expected an integer in"));
  }
  json next = config_of("glm5_next");
  next["num_hidden_layers"] = 8;
  next["text_config"].erase("num_hidden_layers");
  EXPECT_TRUE(refuses(next,
                      "text_config.num_hidden_layers: expected it in text_config, where glm5_next has its fields, got "
                      "it at the top"));
  next = config_of("glm5_next")["text_config"];
  next["model_type"] = "glm5_next";
  next["text_config"] = nullptr;
  EXPECT_NO_THROW((void)parse(next));  // flat
  next.erase("num_hidden_layers");
  EXPECT_TRUE(refuses(next, "text_config: expected an object with num_hidden_layers, or that at the top, got null"));
}

TEST(IgnoredFields, AreThoseOfRopeWithoutDimsToRotate) {
  json config = config_of("deepseek_v32");
  config.erase("rope_parameters");
  config["qk_rope_head_dim"] = 0;
  EXPECT_FALSE(note_on(parse(config), "rope_theta"));
  config["rope_theta"] = 1e4;
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", 40.0}, {"original_max_position_embeddings", 4096}};
  ASSERT_TRUE(note_on(parse(config), "rope_theta"));
  EXPECT_EQ(note_on(parse(config), "rope_theta")->found, "10000.0, beside qk_rope_head_dim 0");
  EXPECT_EQ(note_on(parse(config), "rope_theta")->chosen, "ignored: no rope");
  ASSERT_TRUE(note_on(parse(config), "rope_scaling"));
  EXPECT_EQ(note_on(parse(config), "rope_scaling")->chosen, "ignored: no rope");
  const double unscaled = parse(config).softmax_scale;
  config["rope_scaling"]["mscale_all_dim"] = 1.0;
  EXPECT_GT(parse(config).softmax_scale, unscaled);
  EXPECT_EQ(note_on(parse(config), "rope_scaling")->chosen, "no rope; mscale_all_dim scales the softmax all the same");
  config["qk_rope_head_dim"] = 16;
  EXPECT_FALSE(note_on(parse(config), "rope_scaling"));
}

TEST(KeyDim, MustBeTheSumOfItsParts) {
  for (const std::string& type : test::model_types()) {
    json config = config_of(type);
    const int sum = type == "glm5_next" ? 32 : 48;
    for (const json& good : {json(sum), json(nullptr)}) {
      test::text_of(config)["qk_head_dim"] = good;
      EXPECT_NO_THROW((void)parse(config)) << type;
    }
    for (const json& bad : {json(999), json("48")}) {
      test::text_of(config)["qk_head_dim"] = bad;
      EXPECT_TRUE(refuses(config, "qk_head_dim: expected qk_nope_head_dim + qk_rope_head_dim, " + std::to_string(sum)));
    }
  }
}

TEST(Llama4Scaling, IsRefusedAsEnginesWouldUseIt) {
  json config = config_of("deepseek_v3");
  config["llama_4_scaling"] = {{"beta", 0.1}};
  EXPECT_TRUE(refuses(config, "llama_4_scaling: expected nothing"));
  EXPECT_TRUE(note_on(parse(config, Reading::transformers), "llama_4_scaling"));
}

}  // namespace
}  // namespace headrace
