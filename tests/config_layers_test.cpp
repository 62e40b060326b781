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

  json missing = config_of("glm5_next");
  missing["text_config"].erase("layer_types");
  EXPECT_TRUE(refuses(missing, "text_config.layer_types: expected an array of 8 strings, one a layer, got nothing"));
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
  EXPECT_EQ(sharing_of({{"index_topk_pattern", types}}), "FSFFSSSF");
  EXPECT_EQ(sharing_of({{"index_topk_pattern", initials}}), "FSFFSSSF");
  EXPECT_EQ(sharing_of({{"index_topk_freq", 4}, {"index_skip_topk_offset", 3}}), "FFFSSSFS");
  EXPECT_EQ(sharing_of({{"index_topk_freq", 2}, {"index_skip_topk_offset", 1}}), "FSFSFSFS");
  EXPECT_EQ(sharing_of({{"index_topk_freq", 3}}), "FFSSFSSF");  // the offset is 2 by default
  EXPECT_EQ(sharing_of({{"index_topk_freq", 1}, {"index_skip_topk_offset", 5}}), "FFFFFFFF");

  const json schedule = {{"index_topk_freq", 4}, {"index_skip_topk_offset", 3}, {"index_topk_pattern", nullptr}};
  EXPECT_EQ(sharing_of(schedule), "FFFSSSFS");
  json pattern = schedule;
  pattern["index_topk_pattern"] = "FSSSSSSS";
  EXPECT_EQ(sharing_of(pattern), "FSSSSSSS");
  pattern["indexer_types"] = types;
  EXPECT_EQ(sharing_of(pattern), "FSFFSSSF");
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
  EXPECT_TRUE(refused({{"index_topk_pattern", 4}}, "index_topk_pattern: expected an array of 8 strings"));
  for (const json& bad : {json(0), json(-1), json(2.5), json("4"), json(true), json(1e12)}) {
    EXPECT_TRUE(refused({{"index_topk_freq", bad}}, "index_topk_freq: expected an integer")) << bad;
  }
  EXPECT_TRUE(refused({{"index_skip_topk_offset", -1}}, "index_skip_topk_offset: expected an integer"));
  EXPECT_TRUE(refused({{"index_topk_freq", 4}, {"index_skip_topk_offset", 0}},
                      "index_skip_topk_offset: expected a layer that scores"));
}

TEST(Sharing, IsIgnoredWhereTheArchitectureHasNone) {
  for (const std::string type : {"deepseek_v32", "deepseek_v3"}) {
    json config = config_of(type);
    config["index_topk_freq"] = 4;
    config["indexer_types"] = std::vector<std::string>(8, "shared");
    EXPECT_EQ(letters(parse(config).shares_selection), "FFFFFFFF") << type;
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

}  // namespace
}  // namespace headrace
