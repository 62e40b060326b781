// SPDX-License-Identifier: Apache-2.0
// Help, version and the list of models.
#include <gtest/gtest.h>

#include <string>

#include "headrace/version.h"
#include "support/cli.h"

namespace headrace {
namespace {

using test::Json;
using test::Result;
using test::run;

TEST(Cli, HelpHasExamplesForEveryCommand) {
  const Result main = run("--help");
  EXPECT_EQ(main.status, 0);
  for (const char* command : {"models", "route", "prefill", "verify"}) {
    EXPECT_NE(main.out.find(command), std::string::npos) << command;
    const Result help = run(std::string(command) + " --help");
    EXPECT_EQ(help.status, 0);
    EXPECT_NE(help.out.find("Examples:\n  headrace " + std::string(command)), std::string::npos) << help.out;
    EXPECT_NE(help.out.find("--json"), std::string::npos);
    EXPECT_EQ(help.err, "");
  }
}

TEST(Cli, Version) {
  const Result plain = run("--version");
  EXPECT_EQ(plain.status, 0);
  EXPECT_EQ(plain.out.find("headrace " + std::string(version()) + " "), 0U) << plain.out;
  EXPECT_NE(plain.out.find("commit"), std::string::npos);
  EXPECT_NE(plain.out.find("cpu: dense_mha masked_mha topk_mqa"), std::string::npos);
  const Json json = run("--version --json").json();
  EXPECT_EQ(json.at("schema"), 1);
  EXPECT_EQ(json.at("version"), version());
  EXPECT_TRUE(json.at("commit").is_string());
  EXPECT_EQ(json.at("kernels").at(0).at("device"), "cpu");
}

TEST(Version, OfTheLibraryIsThatOfItsHeaders) {
  const auto number = [](int part) { return std::to_string(part); };
  EXPECT_EQ(version(), number(HEADRACE_VERSION_MAJOR) + "." + number(HEADRACE_VERSION_MINOR) + "." +
                           number(HEADRACE_VERSION_PATCH));
}

TEST(Cli, ModelsListsThePresets) {
  const Result plain = run("models");
  EXPECT_EQ(plain.status, 0);
  const Json models = run("models --json").json().at("models");
  EXPECT_GE(models.size(), 6U);
  bool found = false;
  for (const Json& model : models) {
    EXPECT_NE(plain.out.find(model.at("name").get<std::string>()), std::string::npos);
    if (model.at("name") == "glm-5.3-flash") {
      found = true;
      EXPECT_EQ(model.at("model_type"), "glm5_next");
      EXPECT_EQ(model.at("layers").at("sparse_attention"), 11);
      EXPECT_EQ(model.at("layers").at("linear_attention"), 34);
      EXPECT_EQ(model.at("geometry").at("num_heads"), 64);
      EXPECT_EQ(model.at("geometry").at("qk_rope_head_dim"), 0);
      EXPECT_EQ(model.at("indexer").at("topk"), 2048);
      EXPECT_EQ(model.at("indexer").at("pool"), 4);
      EXPECT_EQ(model.at("cache_bytes_per_token"), 1024);
    }
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace headrace
