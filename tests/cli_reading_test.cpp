// SPDX-License-Identifier: Apache-2.0
// --reading, and what the program says about a config.json.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/cli.h"
#include "support/configs.h"
#include "support/files.h"

namespace headrace {
namespace {

using test::config_of;
using test::expect_error;
using test::Json;
using test::Result;
using test::run;
using test::TemporaryFolder;

class Folder {
 public:
  explicit Folder(const Json& config) { test::write_file(folder_.path() / "config.json", config.dump()); }

  [[nodiscard]] Result route(const std::string& more = "") const {
    return run("route " + model() + " --batch 4 " + more);
  }
  [[nodiscard]] std::string model() const { return "--model " + folder_.path().string(); }

 private:
  TemporaryFolder folder_;
};

Json without_epsilon(const std::string& type) {
  Json config = config_of(type);
  test::text_of(config)["rms_norm_eps"] = 1e-6;
  return config;
}

TEST(Reading, IsOfEnginesUnlessToldOtherwise) {
  const Folder folder(config_of("glm4_moe_lite"));  // an epsilon of 1e-5
  const std::string note =
      "headrace: note: rms_norm_eps: 1e-05. Engines: the q_a and kv_a norms use it. Transformers: they use 1e-06; read "
      "as ";
  EXPECT_EQ(folder.route().err, note + "engines do\n");
  EXPECT_EQ(folder.route("--reading engines").err, folder.route().err);
  EXPECT_EQ(folder.route("--reading transformers").err, note + "transformers does\n");
  EXPECT_EQ(Folder(without_epsilon("glm4_moe_lite")).route().err, "");
}

TEST(Reading, IsInTheDocuments) {
  const Folder folder(config_of("glm4_moe_lite"));
  for (const std::string reading : {"engines", "transformers"}) {
    for (const std::string command : {"route", "prefill"}) {
      const Json json = run(command + " " + folder.model() + " --batch 4 --json --reading " + reading).json();
      EXPECT_EQ(json.at("reading"), reading);
      ASSERT_EQ(json.at("notes").size(), 1U);
      EXPECT_EQ(json.at("notes")[0].at("field"), "rms_norm_eps");
      EXPECT_NE(json.at("notes")[0].at("found").get<std::string>().find("1e-05"), std::string::npos);
      EXPECT_NE(json.at("notes")[0].at("chosen").get<std::string>().find(reading), std::string::npos);
    }
    const Json models = run("models --json --reading " + reading).json();
    for (const Json& model : models.at("models")) {
      EXPECT_EQ(model.at("reading"), reading);
      const std::string name = model.at("name");
      const bool differ = name == "glm-5" || name == "glm-5.2" || name == "glm-4.7-flash";
      const bool by_types_alone = name == "glm-5.2" && reading == "engines";  // which vLLM does not read
      EXPECT_EQ(model.at("notes").size(), (differ ? 1U : 0U) + (by_types_alone ? 1U : 0U)) << name;
    }
  }
}

TEST(Reading, HasTwoNames) {
  expect_error("route --model glm-5 --batch 1 --reading vllm", 2);
  EXPECT_EQ(run("route --model glm-5 --batch 1 --reading vllm").err,
            "headrace: --reading: expected engines or transformers, got \"vllm\"\n");
}

TEST(Reading, SharesSelectionsInADeepSeekV32) {
  Json config = without_epsilon("deepseek_v32");
  config["use_index_cache"] = true;
  config["index_topk_freq"] = 2;
  config["index_skip_topk_offset"] = 1;
  const Folder folder(config);
  const std::string prefill = "prefill " + folder.model() + " --layer 1 --batch 90 --threads 1";
  const Result engines = run(prefill);
  EXPECT_NE(engines.out.find("selection: indexer of layer 0"), std::string::npos) << engines.out;
  EXPECT_NE(engines.err.find("note: index_topk_freq: 2."), std::string::npos) << engines.err;
  const Result transformers = run(prefill + " --reading transformers");
  EXPECT_NE(transformers.out.find("selection: indexer\n"), std::string::npos) << transformers.out;
  EXPECT_NE(transformers.err.find("note: index_topk_freq: 2."), std::string::npos) << transformers.err;
}

TEST(Reading, FindsTheIndexerOfADeepSeekV3) {
  Json config = without_epsilon("deepseek_v32");
  config["model_type"] = "deepseek_v3";
  const Folder folder(config);
  EXPECT_NE(folder.route().out.find("lightning(64)"), std::string::npos);
  EXPECT_NE(folder.route().err.find("note: index_topk: 64."), std::string::npos);
  EXPECT_EQ(folder.route("--reading transformers").out.find("lightning"), std::string::npos);
  EXPECT_NE(folder.route("--reading transformers").err.find("note: index_topk: 64."), std::string::npos);
}

TEST(Reading, RefusesWeightsWithoutTheIndexer) {
  TemporaryFolder folder;
  test::copy_config("deepseek_v32", folder.path());
  Json config = Json::parse(test::read_file(folder.path() / "config.json"));
  config["model_type"] = "deepseek_v3";
  config.erase("layer_types");
  test::write_file(folder.path() / "config.json", config.dump());
  test::SafetensorsWriter weights;  // the first layer's, as a DeepSeek-V3 has them
  const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
    const std::vector<std::int64_t> shape =
        columns > 0 ? std::vector<std::int64_t>{rows, columns} : std::vector<std::int64_t>{rows};
    weights.add("model.layers.0.self_attn." + name + ".weight", shape,
                std::vector<float>(static_cast<std::size_t>(rows * std::max<std::int64_t>(columns, 1)), 0.5F));
  };
  add("q_a_proj", 192, 256);
  add("q_a_layernorm", 192, 0);
  add("q_b_proj", 2 * 192, 192);
  add("kv_a_proj_with_mqa", 512 + 64, 256);
  add("kv_a_layernorm", 512, 0);
  add("kv_b_proj", 2 * 256, 512);
  add("o_proj", 256, 2 * 128);
  test::write_file(folder.path() / "model.safetensors", weights.bytes());
  const std::string prefill = "prefill --model " + folder.path().string() + " --batch 4 --threads 1";
  const Result engines = run(prefill);
  EXPECT_EQ(engines.status, 2);
  EXPECT_NE(engines.err.find("model.layers.0.self_attn.indexer."), std::string::npos) << engines.err;
  EXPECT_NE(engines.err.find(", for index_topk makes this a deepseek_v32, got nothing"), std::string::npos)
      << engines.err;
  const Result transformers = run(prefill + " --reading transformers");
  EXPECT_EQ(transformers.status, 0) << transformers.err;
}

TEST(Reading, AcceptsWhatReferencesAccept) {
  Json inside = without_epsilon("glm_moe_dsa");
  inside["indexer_rope_interleave"] = true;
  inside.erase("rope_parameters");
  inside["rope_scaling"] = {{"rope_theta", 8000000}, {"rope_type", "default"}};
  EXPECT_EQ(Folder(inside).route().err, "");
  Json stale = inside;
  stale["rope_theta"] = 10000;
  EXPECT_EQ(
      Folder(stale).route().err,
      "headrace: note: rope_theta: 10000, beside 8000000 in rope_scaling.rope_theta; 8000000 is taken, by engines "
      "and transformers\n");
  Json untyped = inside;
  untyped["rope_scaling"].erase("rope_type");
  EXPECT_EQ(Folder(untyped).route().err, "");
  Json nope = config_of("glm5_next");
  nope["text_config"]["rope_parameters"] = {{"rope_theta", 10000.0}};
  EXPECT_EQ(Folder(nope).route().status, 0);
  Json flat = config_of("glm5_next")["text_config"];
  flat["model_type"] = "glm5_next";
  EXPECT_EQ(Folder(flat).route().status, 0);
  flat["model_type"] = "glm5_next_text";
  flat.erase("layer_types");
  EXPECT_EQ(Folder(flat).route().status, 0);
}

TEST(Presets, Glm52IsAsLongAsPublished) {
  const Result route = run("route --model glm-5.2 --batch 1+500k");
  EXPECT_EQ(route.err.find("longer than"), std::string::npos) << route.err;
  EXPECT_NE(run("route --model glm-5.2 --batch 1+1024k").err.find("longer than the 1048576 positions"),
            std::string::npos);
}

}  // namespace
}  // namespace headrace
