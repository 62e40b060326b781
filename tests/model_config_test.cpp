// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "headrace/model.h"
#include "support/configs.h"
#include "support/errors.h"
#include "support/files.h"

namespace headrace {
namespace {

using nlohmann::json;
using test::config_of;
using test::letters;
using test::note_on;
using test::parse;
using test::path_of;
using test::refuses;
using test::text_of;
using test::throws_error;

TEST(ModelConfig, ReadsEveryArchitecture) {
  for (const std::string& type : test::model_types()) {
    SCOPED_TRACE(type);
    const ModelConfig config = parse(config_of(type));
    const bool nope = type == "glm5_next";
    EXPECT_EQ(config.model_type, type);
    EXPECT_EQ(config.hidden_size, 256);
    EXPECT_EQ(config.num_layers, 8);
    EXPECT_EQ(config.max_position_embeddings, 4096);
    EXPECT_EQ(config.geometry, (Geometry{4, 128, 32, nope ? 0 : 16, 48}));
    EXPECT_EQ(config.tp, 1);
    EXPECT_EQ(config.q_lora_rank, 96);
    EXPECT_EQ(config.rope.dim, nope ? 0 : 16);
    EXPECT_TRUE(config.rope.interleave);
    EXPECT_FALSE(config.rope.yarn);
    if (!nope) {
      EXPECT_EQ(config.rope.theta, 50000.0);
    }
    EXPECT_EQ(config.weight_prefix, nope ? "model.language_model.layers." : "model.layers.");
    EXPECT_EQ(config.layer_kinds.size(), 8U);
    EXPECT_EQ(config.shares_selection, std::vector<bool>(8, false));
    EXPECT_EQ(config.q_a_norm_epsilon, 1e-5);
    EXPECT_EQ(config.kv_a_norm_epsilon, 1e-5);
    EXPECT_DOUBLE_EQ(config.softmax_scale, nope ? 0.17677669529663689 : 0.14433756729740643);  // 1/sqrt(32), 1/sqrt(48)
  }
}

TEST(ModelConfig, HasAnIndexerWhereTheArchitectureHasOne) {
  for (const std::string type : {"deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"}) {
    const ModelConfig config = parse(config_of(type));
    EXPECT_FALSE(config.indexer) << type;
    EXPECT_EQ(config.layer_kinds, std::vector<LayerKind>(8, LayerKind::full_attention)) << type;
    EXPECT_EQ(config.selection_rule(5), SelectionRule::none()) << type;
    EXPECT_EQ(config.first_attention_layer(), 0) << type;
    EXPECT_THROW((void)config.selection_source(0), Error) << type;
  }
  for (const std::string type : {"deepseek_v32", "glm_moe_dsa"}) {
    const ModelConfig config = parse(config_of(type));
    ASSERT_TRUE(config.indexer) << type;
    EXPECT_EQ(config.indexer->num_heads, 2);
    EXPECT_EQ(config.indexer->head_dim, 32);
    EXPECT_EQ(config.indexer->rope_dim, 16);
    EXPECT_EQ(config.indexer->key_norm_epsilon, 1e-6);
    EXPECT_FALSE(config.indexer->kpool);
    EXPECT_EQ(config.indexer->pool, 1);
    EXPECT_EQ(config.layer_kinds, std::vector<LayerKind>(8, LayerKind::sparse_attention)) << type;
    EXPECT_EQ(config.selection_rule(0), SelectionRule::lightning(64)) << type;
  }
  const ModelConfig next = parse(config_of("glm5_next"));
  ASSERT_TRUE(next.indexer);
  EXPECT_TRUE(next.indexer->kpool);
  EXPECT_EQ(next.indexer->rope_dim, 0);
  EXPECT_EQ(next.selection_rule(3), SelectionRule::kpool(64, 4, true));
  EXPECT_THROW((void)next.selection_rule(0), Error);   // linear attention
  EXPECT_THROW((void)next.selection_rule(-1), Error);  // no layer
  EXPECT_THROW((void)next.selection_rule(8), Error);
  EXPECT_EQ(next.first_attention_layer(), 2);
}

TEST(ModelConfig, PairsTheIndexersRopeAsTheArchitectureDoes) {
  for (const std::string type : {"deepseek_v32", "glm_moe_dsa"}) {
    const bool fixed = type == "glm_moe_dsa";  // in transformers, whatever the field says
    for (const json& given : {json(), json(false), json(true)}) {
      SCOPED_TRACE(type + " " + given.dump());
      json config = config_of(type);
      config["rms_norm_eps"] = 1e-6;
      if (!given.is_null()) {
        config["indexer_rope_interleave"] = given;
      }
      const bool engines = given.is_boolean() && given.get<bool>();  // half-split where it is absent
      for (const Reading reading : {Reading::engines, Reading::transformers}) {
        const ModelConfig read = parse(config, reading);
        EXPECT_EQ(read.indexer->rope_interleave, reading == Reading::engines ? engines : fixed);
        EXPECT_EQ(read.readings_differ, engines != fixed);
        EXPECT_EQ(note_on(read, "indexer_rope_interleave").has_value(), engines != fixed);
      }
    }
    json config = config_of(type);
    config["qk_rope_head_dim"] = 0;
    config.erase("rope_parameters");
    EXPECT_EQ(parse(config).indexer->rope_dim, 0) << type;
    EXPECT_EQ(parse(config).rope.dim, 0) << type;
  }
}

TEST(ModelConfig, TakesRopeInterleaveWhereTheArchitectureHasIt) {
  for (const std::string& type : test::model_types()) {
    SCOPED_TRACE(type);
    json config = config_of(type);
    text_of(config)["rope_interleave"] = true;
    EXPECT_TRUE(parse(config).rope.interleave);
    text_of(config)["rope_interleave"] = false;
    if (type == "deepseek_v3" || type == "kimi_k2" || type == "glm4_moe_lite") {
      EXPECT_FALSE(parse(config).rope.interleave);
    } else {
      EXPECT_TRUE(refuses(config, path_of(config, "rope_interleave: expected true")));
    }
  }
}

TEST(ModelConfig, NullRankMeansOneQueryProjection) {
  for (const std::string& type : test::model_types()) {
    SCOPED_TRACE(type);
    json config = config_of(type);
    text_of(config)["q_lora_rank"] = nullptr;
    if (type == "deepseek_v32" || type == "glm_moe_dsa" || type == "glm5_next") {
      EXPECT_TRUE(refuses(config, path_of(config, "q_lora_rank: expected an integer")));  // the indexer needs it
    } else {
      EXPECT_EQ(parse(config).q_lora_rank, std::nullopt);
    }
    text_of(config).erase("q_lora_rank");
    EXPECT_TRUE(refuses(config, path_of(config, "q_lora_rank: expected an integer in [1, 65536], got nothing")));
  }
}

// Every number that the architecture needs, given every wrong value: the error names the field.
TEST(BadFields, AreNamed) {
  const std::vector<std::string> every = {"hidden_size",  "num_hidden_layers", "num_attention_heads",
                                          "kv_lora_rank", "qk_nope_head_dim",  "qk_rope_head_dim",
                                          "v_head_dim",   "q_lora_rank",       "max_position_embeddings"};
  const std::vector<std::string> of_indexer = {"index_topk", "index_n_heads", "index_head_dim"};
  const json bad_values[] = {-1,
                             std::int64_t{1'000'000'000'000},
                             std::numeric_limits<std::int64_t>::max(),
                             std::numeric_limits<std::int64_t>::min(),
                             std::uint64_t{1} << 63,
                             std::numeric_limits<std::uint64_t>::max(),
                             1e12,
                             1e300,
                             3.5,
                             64.0,
                             "64",
                             "",
                             true,
                             json::array({64}),
                             json::object()};
  for (const std::string& type : test::model_types()) {
    std::vector<std::string> fields = every;
    if (config_of(type).contains("index_topk") || type == "glm5_next") {
      fields.insert(fields.end(), of_indexer.begin(), of_indexer.end());
    }
    for (const std::string& field : fields) {
      json config = config_of(type);
      const std::string message = "config.json: " + path_of(config, field) + ": expected an integer in [";
      for (const json& value : bad_values) {
        text_of(config)[field] = value;
        EXPECT_TRUE(refuses(config, message)) << type << ' ' << field << ' ' << value;
      }
      if (field != "qk_rope_head_dim") {
        text_of(config)[field] = 0;
        EXPECT_TRUE(refuses(config, message)) << type << ' ' << field;
      }
      if (field != "q_lora_rank") {
        text_of(config)[field] = nullptr;
        EXPECT_TRUE(refuses(config, message)) << type << ' ' << field;
      }
      text_of(config).erase(field);
      EXPECT_TRUE(refuses(config, message)) << type << ' ' << field;
    }
  }
}

TEST(BadFields, AreNamedWhereOptional) {
  for (const std::string& type : test::model_types()) {
    SCOPED_TRACE(type);
    json config = config_of(type);
    text_of(config).erase("num_key_value_heads");
    EXPECT_NO_THROW((void)parse(config));
    text_of(config)["num_key_value_heads"] = 2;
    EXPECT_TRUE(refuses(config, path_of(config, "num_key_value_heads: expected num_attention_heads, 4, got 2")));
    text_of(config)["num_key_value_heads"] = "4";
    EXPECT_TRUE(refuses(config, path_of(config, "num_key_value_heads: expected an integer")));

    config = config_of(type);
    text_of(config)["attention_bias"] = false;
    EXPECT_NO_THROW((void)parse(config));
    text_of(config)["attention_bias"] = true;
    EXPECT_TRUE(refuses(config, path_of(config, "attention_bias: expected false")));
    text_of(config)["attention_bias"] = 0;
    EXPECT_TRUE(refuses(config, path_of(config, "attention_bias: expected true or false, got 0")));

    config = config_of(type);
    for (const json& bad : {json(0), json(0.0), json(-1e-6), json(2), json(1e300), json("1e-6"), json(true)}) {
      text_of(config)["rms_norm_eps"] = bad;
      EXPECT_TRUE(refuses(config, path_of(config, "rms_norm_eps: expected a number in [1e-12, 1]"))) << bad;
    }
  }
  json next = config_of("glm5_next");
  next["text_config"].erase("rms_norm_eps");
  EXPECT_TRUE(refuses(next, "text_config.rms_norm_eps: expected a number in [1e-12, 1], got nothing"));
  EXPECT_TRUE(refuses(next, "text_config.rms_norm_eps", Reading::transformers));
  json lite = config_of("glm4_moe_lite");
  lite.erase("rms_norm_eps");
  EXPECT_TRUE(refuses(lite, "rms_norm_eps: expected a number in [1e-12, 1], got nothing"));
  EXPECT_EQ(parse(lite, Reading::transformers).kv_a_norm_epsilon, 1e-6);
}

TEST(BadFields, AreNullsWhereNullMeansNothing) {
  for (const std::string& type : test::model_types()) {
    SCOPED_TRACE(type);
    const json plain = config_of(type);
    for (const char* field : {"attention_bias", "rope_interleave", "rms_norm_eps"}) {
      json config = plain;
      text_of(config)[field] = nullptr;
      EXPECT_TRUE(refuses(config, path_of(config, field) + ": expected"));
    }
    for (const char* field : {"rope_scaling", "layer_types", "indexer_types", "index_topk_pattern", "text_config"}) {
      json config = plain;
      if (!text_of(config).contains(field)) {
        text_of(config)[field] = nullptr;
        EXPECT_NO_THROW((void)parse(config)) << field;
      }
    }
    json config = plain;
    text_of(config)["num_key_value_heads"] = nullptr;
    if (type == "deepseek_v2" || type == "deepseek_v3" || type == "kimi_k2") {
      EXPECT_NO_THROW((void)parse(config));
    } else {
      EXPECT_TRUE(refuses(config, path_of(config, "num_key_value_heads: expected an integer")));
    }
  }
}

TEST(BadFields, ThatContradictEachOther) {
  json odd = config_of("deepseek_v3");
  odd["qk_rope_head_dim"] = 15;
  EXPECT_TRUE(refuses(odd, "config.json: qk_rope_head_dim: expected an even number, got 15"));
  json rope = config_of("glm5_next");
  rope["text_config"]["qk_rope_head_dim"] = 64;
  EXPECT_TRUE(refuses(rope, "text_config.qk_rope_head_dim: expected an integer in [0, 0], got 64"));
  json narrow = config_of("deepseek_v32");
  narrow["index_head_dim"] = 8;
  EXPECT_TRUE(refuses(narrow, "index_head_dim: expected at least qk_rope_head_dim, 16, got 8"));
  json uneven = config_of("deepseek_v2");
  uneven["num_attention_heads"] = 3;
  uneven["num_key_value_heads"] = 3;
  EXPECT_TRUE(refuses(uneven, "hidden_size: expected a multiple of num_attention_heads, 3, got 256"));
}

TEST(HeadDim, IsAnotherNameOrIgnored) {
  json lite = config_of("glm4_moe_lite");
  lite["head_dim"] = 16;
  EXPECT_NO_THROW((void)parse(lite));
  lite["head_dim"] = 32;
  EXPECT_TRUE(refuses(lite, "head_dim: expected the same as qk_rope_head_dim, 16, got 32"));
  lite.erase("qk_rope_head_dim");
  EXPECT_EQ(parse(lite).geometry.qk_rope_head_dim, 32);
  lite["head_dim"] = 31;
  EXPECT_TRUE(refuses(lite, "head_dim: expected an even number, got 31"));

  json v3 = config_of("deepseek_v3");
  v3["head_dim"] = 32;  // transformers would make frequencies for 32 dims
  EXPECT_TRUE(refuses(v3, "head_dim: expected the same as qk_rope_head_dim, 16, got 32", Reading::transformers));
  const ModelConfig engines = parse(v3);
  EXPECT_EQ(engines.geometry.qk_rope_head_dim, 16);
  EXPECT_TRUE(note_on(engines, "head_dim"));
  EXPECT_FALSE(engines.readings_differ);  // the other reading gives no layer
}

TEST(Documents, OtherThanConfigurationsAreRefused) {
  const auto refused = [](const std::string& text, const std::string& message) {
    return throws_error([&] { (void)parse_model_config(text, "some/file"); }, message);
  };
  EXPECT_TRUE(refused("", "some/file: expected JSON"));
  EXPECT_TRUE(refused("{", "some/file: expected JSON"));
  EXPECT_TRUE(refused(R"({"model_type": NaN})", "some/file: expected JSON"));
  EXPECT_TRUE(refused(R"({"model_type": Infinity})", "some/file: expected JSON"));
  EXPECT_TRUE(refused(R"({"hidden_size": 1e400})", "some/file: expected JSON"));
  EXPECT_TRUE(refused("{} {}", "some/file: expected JSON"));
  EXPECT_TRUE(refused("\xff\xfe", "some/file: expected JSON"));
  EXPECT_TRUE(refused(std::string(1'000'000, '['), "some/file: expected JSON that nests at most 64 deep"));
  EXPECT_TRUE(refused("{\"a\":" + std::string(1'000'000, '['), "nests at most 64 deep"));
  EXPECT_TRUE(refused("[]", "some/file: expected an object, got an array of 0"));
  EXPECT_TRUE(refused("null", "some/file: expected an object, got null"));
  EXPECT_TRUE(refused("{}", "some/file: model_type: expected a string, got nothing"));
  EXPECT_TRUE(refused(R"({"model_type": 3})", "some/file: model_type: expected a string, got 3"));
  EXPECT_TRUE(refused(R"({"model_type": "llama"})", "some/file: model_type: expected one of deepseek_v2, deepseek_v3"));
  EXPECT_TRUE(refused(R"({"model_type": "deepseek_v2", "model_type": "deepseek_v3"})", "\"model_type\" twice"));
  EXPECT_TRUE(refused(R"({"model_type": "glm5_next"})", "some/file: num_hidden_layers: expected an integer"));
  EXPECT_TRUE(refused(R"({"model_type": "glm5_next", "text_config": []})", "text_config: expected an object"));
  EXPECT_TRUE(refused(R"({"model_type": "glm5_next", "text_config": {"model_type": "llama"}})",
                      "text_config.model_type: expected \"glm5_next_text\", got \"llama\""));
}

TEST(Shard, DividesTheHeads) {
  const ModelConfig whole = parse(config_of("glm_moe_dsa"));
  const ModelConfig half = whole.shard(2);
  EXPECT_EQ(half.geometry.num_heads, 2);
  EXPECT_EQ(half.tp, 2);
  EXPECT_EQ(half.geometry.kv_lora_rank, whole.geometry.kv_lora_rank);
  EXPECT_EQ(half.indexer->num_heads, whole.indexer->num_heads);  // every rank selects for itself
  EXPECT_EQ(half.shard(2).geometry.num_heads, 1);
  EXPECT_EQ(half.shard(2).tp, 4);
  EXPECT_EQ(whole.shard(1).tp, 1);
  for (const std::int64_t ranks :
       {std::int64_t{0}, std::int64_t{-2}, std::int64_t{3}, std::int64_t{8}, std::numeric_limits<std::int64_t>::max(),
        std::numeric_limits<std::int64_t>::min()}) {
    EXPECT_TRUE(throws_error([&] { (void)whole.shard(ranks); }, "tp: expected a divisor of the 4 heads")) << ranks;
  }
}

TEST(GeometryTest, ValidatesEachDimension) {
  const Geometry good{4, 128, 32, 16, 48};
  EXPECT_NO_THROW(good.validate());
  EXPECT_NO_THROW((Geometry{1, 1, 1, 0, 1}.validate()));
  EXPECT_THROW(Geometry{}.validate(), Error);
  struct Field {
    const char* name;
    std::int64_t Geometry::*member;
  };
  for (const Field& field :
       {Field{"num_heads", &Geometry::num_heads}, Field{"kv_lora_rank", &Geometry::kv_lora_rank},
        Field{"qk_nope_head_dim", &Geometry::qk_nope_head_dim}, Field{"qk_rope_head_dim", &Geometry::qk_rope_head_dim},
        Field{"v_head_dim", &Geometry::v_head_dim}}) {
    for (const std::int64_t bad : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
      Geometry geometry = good;
      geometry.*field.member = bad;
      EXPECT_TRUE(throws_error([&] { geometry.validate(); }, std::string(field.name) + ": expected"));
    }
  }
  EXPECT_TRUE(throws_error(
      [] {
        Geometry{4, 128, 32, 7, 48}.validate();
      },
      "qk_rope_head_dim: expected an even number"));
}

TEST(Presets, AreTheModelsFolder) {
  EXPECT_EQ(preset_names(), (std::vector<std::string>{"deepseek-v3", "deepseek-v3.2", "glm-4.7-flash", "glm-5",
                                                      "glm-5.2", "glm-5.3-flash"}));
  for (const std::string& name : preset_names()) {
    EXPECT_NO_THROW((void)preset(name)) << name;
  }
  EXPECT_TRUE(throws_error([] { (void)preset("glm-6"); },
                           "preset: expected one of deepseek-v3, deepseek-v3.2, glm-4.7-flash, glm-5, glm-5.2, "
                           "glm-5.3-flash, got glm-6"));
}

TEST(Presets, DeepSeek) {
  const ModelConfig v3 = preset("deepseek-v3");
  EXPECT_EQ(v3.geometry, (Geometry{128, 512, 128, 64, 128}));
  EXPECT_EQ(v3.hidden_size, 7168);
  EXPECT_EQ(v3.num_layers, 61);
  EXPECT_EQ(v3.q_lora_rank, 1536);
  EXPECT_EQ(v3.max_position_embeddings, 163840);
  EXPECT_EQ(v3.rope.theta, 10000.0);
  EXPECT_EQ(v3.rope.yarn->factor, 40.0);
  EXPECT_DOUBLE_EQ(v3.softmax_scale, 0.1352337788608801);  // 192^-1/2 * (0.1 * ln 40 + 1)^2
  EXPECT_EQ(v3.selection_rule(60), SelectionRule::none());

  const ModelConfig v32 = preset("deepseek-v3.2");
  EXPECT_EQ(v32.geometry, v3.geometry);
  EXPECT_DOUBLE_EQ(v32.softmax_scale, v3.softmax_scale);
  EXPECT_EQ(v32.selection_rule(60), SelectionRule::lightning(2048));
  EXPECT_EQ(v32.indexer->num_heads, 64);
  EXPECT_EQ(v32.indexer->head_dim, 128);
  EXPECT_EQ(v32.indexer->rope_dim, 64);
  EXPECT_FALSE(v32.indexer->rope_interleave);
  EXPECT_EQ(v32.shard(16).geometry.num_heads, 8);
}

TEST(Presets, Glm) {
  const ModelConfig lite = preset("glm-4.7-flash");
  EXPECT_EQ(lite.geometry, (Geometry{20, 512, 192, 64, 256}));
  EXPECT_EQ(lite.kv_a_norm_epsilon, 1e-5);
  EXPECT_EQ(preset("glm-4.7-flash", Reading::transformers).kv_a_norm_epsilon, 1e-6);
  EXPECT_EQ(lite.selection_rule(0), SelectionRule::none());
  EXPECT_THROW((void)lite.shard(8), Error);

  const ModelConfig five = preset("glm-5");
  EXPECT_EQ(five.geometry, (Geometry{64, 512, 192, 64, 256}));
  EXPECT_EQ(five.rope.theta, 1e6);
  EXPECT_DOUBLE_EQ(five.softmax_scale, 0.0625);
  EXPECT_TRUE(five.indexer->rope_interleave);
  EXPECT_EQ(five.q_a_norm_epsilon, 1e-5);
  EXPECT_EQ(preset("glm-5", Reading::transformers).q_a_norm_epsilon, 1e-6);
  EXPECT_EQ(five.max_position_embeddings, 202752);
  EXPECT_EQ(five.shares_selection, std::vector<bool>(78, false));
}

TEST(Presets, Glm52SharesInFours) {
  const ModelConfig config = preset("glm-5.2");
  ASSERT_EQ(config.num_layers, 78);
  EXPECT_EQ(config.rope.theta, 8e6);
  EXPECT_EQ(config.max_position_embeddings, 1048576);
  for (std::int64_t layer = 0; layer < 78; ++layer) {
    // Layers 0, 1, 2, 6, 10, ... score.
    const std::int64_t source = layer < 3 ? layer : layer - (layer - 2) % 4;
    EXPECT_EQ(config.selection_source(layer), source) << layer;
    EXPECT_EQ(config.shares_selection[static_cast<std::size_t>(layer)], source != layer) << layer;
  }
  EXPECT_EQ(config.first_attention_layer(), 0);

  // The published configuration says the same as a schedule.
  json schedule = config_of("glm_moe_dsa");
  schedule["num_hidden_layers"] = 78;
  schedule["index_topk_freq"] = 4;
  schedule["index_skip_topk_offset"] = 3;
  schedule["index_topk_pattern"] = nullptr;
  EXPECT_EQ(parse(schedule).shares_selection, config.shares_selection);
  schedule["indexer_types"] = std::vector<std::string>(78, "full");
  for (std::size_t layer = 0; layer < 78; ++layer) {
    if (config.shares_selection[layer]) {
      schedule["indexer_types"][layer] = "shared";
    }
  }
  EXPECT_EQ(parse(schedule).shares_selection, config.shares_selection);  // both, as it is published
}

TEST(Presets, Glm53Flash) {
  const ModelConfig config = preset("glm-5.3-flash");
  EXPECT_EQ(config.geometry, (Geometry{64, 512, 256, 0, 256}));
  EXPECT_EQ(config.hidden_size, 4096);
  EXPECT_EQ(config.num_layers, 45);
  EXPECT_EQ(config.q_lora_rank, 1536);
  EXPECT_DOUBLE_EQ(config.softmax_scale, 0.0625);
  EXPECT_EQ(config.q_a_norm_epsilon, 1e-5);
  EXPECT_EQ(config.rope.dim, 0);
  EXPECT_EQ(config.weight_prefix, "model.language_model.layers.");
  for (std::int64_t layer = 0; layer < 45; ++layer) {
    EXPECT_EQ(config.layer_kinds[static_cast<std::size_t>(layer)],
              layer % 4 == 3 ? LayerKind::sparse_attention : LayerKind::linear_attention)
        << layer;
  }
  EXPECT_EQ(config.first_attention_layer(), 3);
  EXPECT_EQ(config.selection_source(7), 7);
  EXPECT_EQ(config.indexer->pool, 4);
  EXPECT_EQ(config.selection_rule(3), SelectionRule::kpool(2048, 4, true));
  EXPECT_EQ(config.selection_rule(3).width(), 2051);
  EXPECT_EQ(config.shard(4).geometry.num_heads, 16);
}

TEST(LoadModelConfig, TakesAFileOrAFolder) {
  const std::filesystem::path data = std::filesystem::path(HEADRACE_TEST_DATA) / "recordings";
  const ModelConfig folder = load_model_config(data / "glm5_next");
  EXPECT_EQ(folder.geometry, (Geometry{2, 512, 256, 0, 256}));
  EXPECT_EQ(letters(folder.shares_selection), "FS");
  EXPECT_EQ(load_model_config(data / "glm5_next" / "config.json").geometry, folder.geometry);
  EXPECT_EQ(load_model_config(data / "glm_moe_dsa_8heads").geometry, (Geometry{8, 256, 192, 64, 256}));
  EXPECT_TRUE(load_model_config(data / "glm_moe_dsa").indexer->rope_interleave);
  EXPECT_FALSE(load_model_config(data / "deepseek_v32").indexer->rope_interleave);

  const test::TemporaryFolder empty;
  const std::string config = (empty.path() / "config.json").string();
  EXPECT_TRUE(throws_error([&] { (void)load_model_config(empty.path()); }, config + ": expected a file, got nothing"));
  test::write_file(config, "");
  EXPECT_TRUE(throws_error([&] { (void)load_model_config(empty.path()); }, config + ": expected JSON"));
}

}  // namespace
}  // namespace headrace
