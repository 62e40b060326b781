// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "headrace/model.h"
#include "layer/rope.h"
#include "support/configs.h"

namespace headrace {
namespace {

using nlohmann::json;
using test::config_of;
using test::note_on;
using test::parse;
using test::refuses;

json yarn() {
  return {{"type", "yarn"},
          {"factor", 40},
          {"original_max_position_embeddings", 4096},
          {"beta_fast", 32},
          {"beta_slow", 1},
          {"mscale", 0.707},
          {"mscale_all_dim", 0.707},
          {"attention_factor", 1.5},
          {"truncate", false}};
}

ModelConfig parse_as_transformers(const json& config) { return parse(config, Reading::transformers); }

TEST(Rope, ReadsBothSpellingsAlike) {
  json older = config_of("deepseek_v3");
  older.erase("rope_parameters");
  older["rope_theta"] = 20000;
  older["rope_scaling"] = yarn();

  json newer = config_of("deepseek_v3");
  newer["rope_parameters"] = yarn();
  newer["rope_parameters"].erase("type");
  newer["rope_parameters"]["rope_type"] = "yarn";
  newer["rope_parameters"]["rope_theta"] = 20000.0;

  json both_names = newer;
  both_names["rope_parameters"]["type"] = "yarn";
  json theta_outside = newer;
  theta_outside["rope_parameters"].erase("rope_theta");
  theta_outside["rope_theta"] = 20000;
  json theta_twice = newer;  // the inner one counts, as in transformers
  theta_twice["rope_theta"] = 7.0;
  json with_null = newer;
  with_null["rope_scaling"] = nullptr;

  json theta_inside = older;  // where rope_parameters has it
  theta_inside.erase("rope_theta");
  theta_inside["rope_scaling"]["rope_theta"] = 20000;
  json theta_stale = theta_inside;
  theta_stale["rope_theta"] = 7.0;
  json empty_beside = newer;
  empty_beside["rope_scaling"] = json::object();
  json both = newer;
  both["rope_scaling"] = newer["rope_parameters"];

  for (const json& config : {older, newer, both_names, theta_outside, theta_twice, with_null, theta_inside, theta_stale,
                             empty_beside, both}) {
    SCOPED_TRACE(config.dump());
    const Rope rope = parse_as_transformers(config).rope;
    EXPECT_EQ(rope.theta, 20000.0);
    ASSERT_TRUE(rope.yarn);
    EXPECT_EQ(rope.yarn->factor, 40.0);
    EXPECT_EQ(rope.yarn->original_max_position_embeddings, 4096);
    EXPECT_EQ(rope.yarn->beta_fast, 32.0);
    EXPECT_EQ(rope.yarn->beta_slow, 1.0);
    EXPECT_EQ(rope.yarn->mscale, 0.707);
    EXPECT_EQ(rope.yarn->mscale_all_dim, 0.707);
    EXPECT_EQ(rope.yarn->attention_factor, 1.5);
    EXPECT_FALSE(rope.yarn->truncate);
  }
}

TEST(Rope, SaysWhichOfTwoThetasCounts) {
  for (const char* spelling : {"rope_scaling", "rope_parameters"}) {
    json config = config_of("glm_moe_dsa");
    config.erase("rope_parameters");
    config[spelling] = {{"rope_type", "default"}, {"rope_theta", 8000000}};
    EXPECT_EQ(parse(config).rope.theta, 8e6);
    EXPECT_FALSE(note_on(parse(config), "rope_theta"));
    config["rope_theta"] = 8000000.0;  // the same number
    EXPECT_FALSE(note_on(parse(config), "rope_theta"));
    config["rope_theta"] = 10000;
    for (const Reading reading : {Reading::engines, Reading::transformers}) {
      const ModelConfig read = parse(config, reading);
      EXPECT_EQ(read.rope.theta, 8e6);
      ASSERT_TRUE(note_on(read, "rope_theta"));
      EXPECT_NE(note_on(read, "rope_theta")->found.find("10000"), std::string::npos);
      EXPECT_NE(note_on(read, "rope_theta")->chosen.find("8000000"), std::string::npos);
    }
    config[spelling]["rope_theta"] = nullptr;  // nothing that transformers could compute with
    EXPECT_TRUE(refuses(config, std::string(spelling) + ".rope_theta: expected a number"));
  }
}

TEST(Rope, TakesRopeScalingWhereBothSpellingsDiffer) {
  json config = config_of("deepseek_v3");
  config["rope_scaling"] = yarn();
  config["rope_scaling"]["rope_theta"] = 30000;
  const ModelConfig read = parse_as_transformers(config);
  EXPECT_EQ(read.rope.theta, 30000.0);
  EXPECT_TRUE(read.rope.yarn);
  EXPECT_TRUE(note_on(read, "rope_scaling"));
}

TEST(Rope, IsPlainWithoutAType) {
  json config = config_of("glm_moe_dsa");
  config["rope_parameters"] = {{"rope_theta", 8000000.0}};
  EXPECT_EQ(parse(config).rope.theta, 8e6);
  EXPECT_FALSE(parse(config).rope.yarn);
  EXPECT_FALSE(note_on(parse(config), "rope_parameters.rope_type"));
  config["rope_parameters"]["factor"] = 4;  // one that was meant to extend the context
  EXPECT_FALSE(parse(config).rope.yarn);
  EXPECT_TRUE(note_on(parse(config), "rope_parameters.rope_type"));

  json nope = config_of("glm5_next");  // without rope its fields mean nothing, whatever they hold
  for (const json& rope : {json({{"rope_theta", 1e4}}), json({{"rope_type", "llama3"}}), json::array(), json("yarn")}) {
    nope["text_config"]["rope_parameters"] = rope;
    EXPECT_EQ(parse(nope).rope.dim, 0);
  }
  nope["text_config"]["partial_rotary_factor"] = 0.5;
  EXPECT_NO_THROW((void)parse(nope));
}

TEST(Rope, NotesFieldsThatNobodyKnows) {
  json config = config_of("deepseek_v3");
  config["rope_parameters"]["mscal"] = 1.0;
  EXPECT_TRUE(note_on(parse(config), "rope_parameters.mscal"));
  config["rope_parameters"]["full_attention"] = {{"rope_type", "yarn"}};
  EXPECT_TRUE(refuses(config, "rope_parameters.full_attention: expected no object"));
}

TEST(Yarn, TakesTheOriginalLengthFromWhereReferencesDo) {
  json config = config_of("deepseek_v3");
  config["rope_parameters"] = {{"rope_type", "yarn"}, {"rope_theta", 1e4}, {"factor", 4.0}};
  EXPECT_EQ(parse(config).rope.yarn->original_max_position_embeddings, 4096);  // max_position_embeddings
  EXPECT_TRUE(note_on(parse(config), "rope_parameters.original_max_position_embeddings"));
  config["rope_parameters"]["original_max_position_embeddings"] = 1024;
  EXPECT_EQ(parse(config).rope.yarn->original_max_position_embeddings, 1024);
  config["original_max_position_embeddings"] = 1024;
  EXPECT_FALSE(note_on(parse(config), "original_max_position_embeddings"));
  config["original_max_position_embeddings"] = 512;
  EXPECT_EQ(parse(config).rope.yarn->original_max_position_embeddings, 512);
  EXPECT_TRUE(note_on(parse(config), "original_max_position_embeddings"));
}

TEST(Yarn, IsReadInTwoWays) {
  const double ln4 = std::log(4.0);
  struct Case {
    json fields;
    const char* named;  // by the note; nullptr: the readings agree
    double engines;     // what sines and cosines are multiplied with
    double transformers;
  };
  const Case cases[] = {
      {json::object(), nullptr, 1.0 + 0.1 * ln4, 1.0 + 0.1 * ln4},
      {{{"mscale", 0.5}, {"mscale_all_dim", 0.5}}, nullptr, 1.0, 1.0},
      {{{"mscale", 0.5}}, "mscale", 1.0 + 0.05 * ln4, 1.0 + 0.1 * ln4},
      {{{"mscale_all_dim", 0.5}}, "mscale_all_dim", (1.0 + 0.1 * ln4) / (1.0 + 0.05 * ln4), 1.0 + 0.1 * ln4},
      {{{"attention_factor", 1.5}}, "attention_factor", 1.0 + 0.1 * ln4, 1.5},
      {{{"attn_factor", 2.0}}, "attn_factor", 2.0 * (1.0 + 0.1 * ln4), 1.0 + 0.1 * ln4},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.fields.dump());
    json config = config_of("deepseek_v3");
    config["rms_norm_eps"] = 1e-6;
    config["rope_parameters"] = {
        {"rope_type", "yarn"}, {"rope_theta", 1e4}, {"factor", 4.0}, {"original_max_position_embeddings", 1024}};
    config["rope_parameters"].update(c.fields);
    for (const Reading reading : {Reading::engines, Reading::transformers}) {
      const ModelConfig read = parse(config, reading);
      EXPECT_NEAR(layer::rope_frequencies(read.rope).attention_factor,
                  reading == Reading::engines ? c.engines : c.transformers, 1e-14);
      EXPECT_EQ(read.readings_differ, c.named != nullptr);
      EXPECT_EQ(read.notes.size(), c.named != nullptr ? 1U : 0U);
      if (c.named != nullptr) {
        EXPECT_TRUE(note_on(read, std::string("rope_parameters.") + c.named));
      }
    }
  }
  json config = config_of("deepseek_v3");
  config["rms_norm_eps"] = 1e-6;
  config["rope_parameters"] = {{"rope_type", "yarn"},
                               {"rope_theta", 1e4},
                               {"factor", 4.0},
                               {"original_max_position_embeddings", 1024},
                               {"truncate", false}};
  EXPECT_TRUE(parse(config).rope.yarn->truncate);
  EXPECT_FALSE(parse_as_transformers(config).rope.yarn->truncate);
  EXPECT_TRUE(parse(config).readings_differ);
  EXPECT_TRUE(note_on(parse(config), "rope_parameters.truncate"));
  config["rope_parameters"]["extrapolation_factor"] = 0.5;
  EXPECT_TRUE(refuses(config, "rope_parameters.extrapolation_factor: expected 1"));
  EXPECT_TRUE(note_on(parse_as_transformers(config), "rope_parameters.extrapolation_factor"));
}

TEST(Rope, IsPlainWithoutScaling) {
  json config = config_of("deepseek_v3");
  config.erase("rope_parameters");
  config["rope_theta"] = 10000;
  EXPECT_FALSE(parse(config).rope.yarn);
  config["rope_scaling"] = nullptr;
  EXPECT_FALSE(parse(config).rope.yarn);
  EXPECT_EQ(parse(config).rope.theta, 10000.0);
}

TEST(Rope, YarnDefaultsAreTransformers) {
  json config = config_of("deepseek_v3");
  config["rope_parameters"] = {
      {"rope_type", "yarn"}, {"rope_theta", 1e4}, {"factor", 2.5}, {"original_max_position_embeddings", 1024}};
  const auto expect_defaults = [&config] {
    const Yarn yarn = parse_as_transformers(config).rope.yarn.value();
    EXPECT_EQ(yarn.factor, 2.5);
    EXPECT_EQ(yarn.beta_fast, 32.0);
    EXPECT_EQ(yarn.beta_slow, 1.0);
    EXPECT_FALSE(yarn.mscale);
    EXPECT_FALSE(yarn.mscale_all_dim);
    EXPECT_FALSE(yarn.attention_factor);
    EXPECT_TRUE(yarn.truncate);
  };
  expect_defaults();
  for (const char* field : {"beta_fast", "beta_slow", "mscale", "mscale_all_dim"}) {
    config["rope_parameters"][field] = 0;  // counts as absent
  }
  expect_defaults();
}

TEST(Rope, ABetaOfZeroIsNoneToEngines) {
  for (const char* field : {"beta_fast", "beta_slow"}) {
    for (const json& value : {json(0), json(nullptr)}) {
      json config = config_of("deepseek_v3");
      config["rope_parameters"] = yarn();
      config["rope_parameters"]["rope_theta"] = 1e4;
      config["rope_parameters"][field] = value;
      EXPECT_TRUE(refuses(config, std::string("rope_parameters.") + field + ": expected a number in [0.001, 1e+06]"));
      const Yarn yarn = parse_as_transformers(config).rope.yarn.value();
      EXPECT_EQ(yarn.beta_fast, 32.0);
      EXPECT_EQ(yarn.beta_slow, 1.0);
    }
  }
}

TEST(Rope, SoftmaxScaleHasTheSquareOfMscaleAllDim) {
  struct Case {
    json mscale_all_dim;
    double factor;
    double expected;  // 192^-1/2 * (0.1 * mscale_all_dim * ln(factor) + 1)^2
  };
  for (const std::string type :
       {"deepseek_v2", "deepseek_v3", "kimi_k2", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite"}) {
    for (const Case& c : {Case{1.0, 40.0, 0.1352337788608801}, Case{0.707, 40.0, 0.11472138679292611},
                          Case{1.0, 32.0, 0.13086079996295005}, Case{1.0, 1.0, 0.07216878364870322},
                          Case{nullptr, 40.0, 0.07216878364870322}, Case{0.0, 40.0, 0.07216878364870322}}) {
      SCOPED_TRACE(fmt::format("{} mscale_all_dim {} factor {}", type, c.mscale_all_dim.dump(), c.factor));
      json config = config_of(type);
      config["qk_nope_head_dim"] = 128;
      config["qk_rope_head_dim"] = 64;
      if (config.contains("index_head_dim")) {
        config["index_head_dim"] = 64;
      }
      config["rope_parameters"] = yarn();
      config["rope_parameters"]["rope_theta"] = 1e4;
      config["rope_parameters"]["factor"] = c.factor;
      config["rope_parameters"]["mscale_all_dim"] = c.mscale_all_dim;
      EXPECT_DOUBLE_EQ(parse(config).softmax_scale, c.expected);
    }
  }
  // An architecture without rope ignores the fields.
  json next = config_of("glm5_next");
  next["text_config"]["rope_parameters"] = yarn();
  EXPECT_DOUBLE_EQ(parse(next).softmax_scale, 0.17677669529663689);
  EXPECT_FALSE(parse(next).rope.yarn);
}

TEST(Rope, RefusesWhatItDoesNotKnow) {
  struct Case {
    const char* name;
    std::function<void(json&)> change;
    std::string message;
  };
  const Case cases[] = {
      {"unknown type", [](json& c) { c["rope_scaling"]["type"] = "linear"; },
       "rope_scaling.type: expected \"default\" or \"yarn\", got \"linear\""},
      {"empty type", [](json& c) { c["rope_scaling"]["type"] = ""; }, "rope_scaling.type: expected \"default\""},
      {"upper case", [](json& c) { c["rope_scaling"]["type"] = "YaRN"; }, "rope_scaling.type: expected \"default\""},
      {"type of a type", [](json& c) { c["rope_scaling"]["type"] = 1; }, "rope_scaling.type: expected a string, got 1"},
      {"null type", [](json& c) { c["rope_scaling"]["type"] = nullptr; },
       "rope_scaling.type: expected a string, got null"},
      {"null rope_type", [](json& c) { c["rope_scaling"]["rope_type"] = nullptr; },
       "rope_scaling.rope_type: expected a string, got null"},
      {"types differ", [](json& c) { c["rope_scaling"]["rope_type"] = "default"; },
       "rope_scaling.type: expected the same as rope_type, \"default\", got \"yarn\""},
      {"unknown rope_type",
       [](json& c) {
         c["rope_scaling"] = {{"rope_type", "llama3"}};
       },
       "rope_scaling.rope_type: expected \"default\" or \"yarn\", got \"llama3\""},
      {"no object", [](json& c) { c["rope_scaling"] = "yarn"; }, "rope_scaling: expected an object, got \"yarn\""},
      {"list", [](json& c) { c["rope_scaling"] = json::array(); }, "rope_scaling: expected an object"},
      {"no theta", [](json& c) { c.erase("rope_theta"); },
       "rope_theta: expected a number in [2, 1e+12], here, in rope_parameters or in rope_scaling, got nothing"},
      {"theta null", [](json& c) { c["rope_theta"] = nullptr; }, "rope_theta: expected a number"},
      {"theta text", [](json& c) { c["rope_theta"] = "10000"; }, "rope_theta: expected a number"},
      {"theta zero", [](json& c) { c["rope_theta"] = 0; }, "rope_theta: expected a number"},
      {"theta one", [](json& c) { c["rope_theta"] = 1.0; }, "rope_theta: expected a number"},
      {"theta huge", [](json& c) { c["rope_theta"] = 1e300; }, "rope_theta: expected a number"},
      {"no factor", [](json& c) { c["rope_scaling"].erase("factor"); },
       "rope_scaling.factor: expected a number in [1, 1e+06], which the type \"yarn\" needs, got nothing"},
      {"factor null", [](json& c) { c["rope_scaling"]["factor"] = nullptr; }, "rope_scaling.factor"},
      {"factor < 1", [](json& c) { c["rope_scaling"]["factor"] = 0.5; }, "rope_scaling.factor"},
      {"factor negative", [](json& c) { c["rope_scaling"]["factor"] = -40; }, "rope_scaling.factor"},
      {"factor huge", [](json& c) { c["rope_scaling"]["factor"] = 1e300; }, "rope_scaling.factor"},
      {"factor bool", [](json& c) { c["rope_scaling"]["factor"] = true; }, "rope_scaling.factor"},
      {"original length 0", [](json& c) { c["rope_scaling"]["original_max_position_embeddings"] = 0; },
       "rope_scaling.original_max_position_embeddings"},
      {"betas reversed", [](json& c) { c["rope_scaling"]["beta_fast"] = 0.5; },
       "rope_scaling.beta_fast: expected at least"},
      {"beta negative", [](json& c) { c["rope_scaling"]["beta_slow"] = -1; }, "rope_scaling.beta_slow"},
      {"mscale negative", [](json& c) { c["rope_scaling"]["mscale"] = -1; }, "rope_scaling.mscale: expected a number"},
      {"mscale text", [](json& c) { c["rope_scaling"]["mscale_all_dim"] = "1"; }, "rope_scaling.mscale_all_dim"},
      {"attention factor 0", [](json& c) { c["rope_scaling"]["attention_factor"] = 0; },
       "rope_scaling.attention_factor"},
      {"truncate 1", [](json& c) { c["rope_scaling"]["truncate"] = 1; },
       "rope_scaling.truncate: expected true or false"},
      {"truncate null", [](json& c) { c["rope_scaling"]["truncate"] = nullptr; },
       "rope_scaling.truncate: expected true or false"},
      {"partial", [](json& c) { c["partial_rotary_factor"] = 0.5; }, "partial_rotary_factor: expected 1, got 0.5"},
      {"partial inside", [](json& c) { c["rope_scaling"]["partial_rotary_factor"] = 0.5; },
       "rope_scaling.partial_rotary_factor: expected 1"},
  };
  json base = config_of("deepseek_v3");
  base.erase("rope_parameters");
  base["rope_theta"] = 10000;
  base["rope_scaling"] = yarn();
  ASSERT_NO_THROW((void)parse(base));
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    json config = base;
    c.change(config);
    EXPECT_TRUE(refuses(config, c.message));
  }
}

}  // namespace
}  // namespace headrace
