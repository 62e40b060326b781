// SPDX-License-Identifier: Apache-2.0
// headrace route.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/cli.h"
#include "support/files.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::Json;
using test::Result;
using test::run;
using test::TemporaryFolder;
using test::write_file;

TEST(Cli, RouteJsonHasItsSchema) {
  const Result result = run("route --model glm-5.3-flash --tp 4 --batch 2048,1x3000+1096,4x1+8k --json");
  ASSERT_EQ(result.status, 0) << result.err;
  const Json document = result.json();
  EXPECT_EQ(document.at("schema"), 1);
  EXPECT_EQ(document.at("device"), "cpu");
  EXPECT_EQ(document.at("geometry"), Json({{"num_heads", 16},
                                           {"kv_lora_rank", 512},
                                           {"qk_nope_head_dim", 256},
                                           {"qk_rope_head_dim", 0},
                                           {"v_head_dim", 256}}));
  EXPECT_GT(document.at("workspace_bytes"), 0);
  ASSERT_EQ(document.at("requests").size(), 6U);
  for (const Json& request : document.at("requests")) {
    std::set<std::string> paths{request.at("path").get<std::string>()};
    EXPECT_GT(request.at("predicted_ms"), 0.0);
    EXPECT_FALSE(request.at("reason").get<std::string>().empty());
    for (const Json& other : request.at("alternatives")) {
      paths.insert(other.at("path").get<std::string>());
      EXPECT_EQ(other.at("predicted_ms").is_null(), !other.at("unmet").empty());
    }
    EXPECT_EQ(paths, (std::set<std::string>{"dense_mha", "masked_mha", "topk_mqa"}));
  }
  const Json& first = document.at("requests").at(0);
  EXPECT_EQ(first.at("request"), 0);
  EXPECT_EQ(first.at("query_len"), 2048);
  EXPECT_EQ(first.at("context_len"), 0);
  EXPECT_EQ(first.at("skip_scoring"), true);
  EXPECT_EQ(document.at("requests").at(5).at("context_len"), 8192);
  EXPECT_EQ(document.at("requests").at(5).at("skip_scoring"), false);
}

bool dense_can_run(const Json& request) {
  for (const Json& other : request.at("alternatives")) {
    if (other.at("path") == "dense_mha") {
      return other.at("unmet").empty();
    }
  }
  return request.at("path") == "dense_mha";
}

TEST(Cli, RouteKnowsTheEdgesOfCoverage) {
  const auto dense = [](const std::string& arguments) {
    std::vector<bool> able;
    const Json document = run("route " + arguments + " --json").json();
    for (const Json& request : document.at("requests")) {
      able.push_back(dense_can_run(request));
    }
    return able;
  };
  EXPECT_EQ(dense("--model glm-5 --batch 2048,2049,1+2047,1+2048"), (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(dense("--model glm-5.3-flash --batch 2051,2052"), (std::vector<bool>{true, false}));
  EXPECT_EQ(dense("--model deepseek-v3 --batch 64k"), (std::vector<bool>{true}));
  EXPECT_EQ(dense("--model glm-5 --batch 16 --selection drift:0.9"), (std::vector<bool>{false}));
}

TEST(Cli, RouteGroupsEqualRequests) {
  const Result result = run("route --model glm-5 --batch 2048,64x1+32k");
  EXPECT_EQ(result.status, 0);
  EXPECT_NE(result.out.find("64 x 1+32768"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("1+32768", result.out.find("1+32768") + 1), std::string::npos) << result.out;
}

TEST(Cli, AForcedPathThatCannotRunIsStatus1) {
  expect_error("route --model glm-5 --batch 16,4k --force dense_mha", 1);
  expect_error("prefill --model glm-5 --batch 16,4k --force dense_mha", 1);
  EXPECT_EQ(run("route --model glm-5 --batch 16,4k --force masked_mha").status, 0);
}

TEST(Cli, AForcedPathThatCannotRunIsNamedWithTheRequest) {
  const Result result = run("route --model glm-5 --batch 16,1k+3000 --force dense_mha");
  EXPECT_EQ(result.err.substr(0, 67), "headrace: --force: dense_mha cannot serve request 1 (1024+3000): li")
      << result.err;
  expect_error("route --model glm-5 --batch 16 --force dense_mha --workspace-limit 1KiB", 1);
  expect_error("prefill --model glm-5 --batch 16 --force dense_mha --workspace-limit 1KiB", 1);
}

TEST(Cli, ALowWorkspaceLimitIsNamedAsTheUserKnowsIt) {
  const Result result = run("route --model glm-5 --batch 4k --workspace-limit 1KiB");
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.err.substr(0, 28), "headrace: --workspace-limit:") << result.err;
}

TEST(Cli, RouteShowsASplitRequestInNarrowLines) {
  const Result result = run("route --model glm-5.3-flash --tp 4 --threads 2 --batch 16k");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("dense_mha [0, 2051) "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("topk_mqa [2051, 16384) "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("1 request, 16384 new tokens"), std::string::npos) << result.out;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80U) << line;
  }
}

TEST(Cli, RequestsBeyondTheModelsPositionsAreNoted) {
  const Result within = run("route --model deepseek-v3.2 --batch 1+1k");
  EXPECT_EQ(within.err, "");
  const Result beyond = run("route --model deepseek-v3.2 --batch 1,1+1000k --json");
  EXPECT_EQ(beyond.status, 0);
  EXPECT_NE(beyond.err.find("request 1+1024000 is longer than"), std::string::npos) << beyond.err;
}

TEST(Cli, RatesComeFromTheProfileNamed) {
  const std::string route = "route --model deepseek-v3.2 --batch 4k --profile ";
  const Json nominal = run(route + "nominal --json").json();
  EXPECT_EQ(nominal.at("profile"), "nominal");
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "profile.json";
  Json profile = {{"schema", 2},           {"name", "slow"},         {"compute", "bfloat16"}, {"threads", 1},
                  {"product_gflops", 1.0}, {"mha_gflops", 1.0},      {"mqa_gflops", 1.0},     {"gather_mkeys", 1.0},
                  {"mask_gkeys", 1.0},     {"bandwidth_gbytes", 1.0}};
  write_file(file, profile.dump());
  const Json slow = run(route + file.string() + " --json").json();
  EXPECT_EQ(slow.at("profile"), "slow");
  const auto notes = [&](const std::string& options) { return run(route + file.string() + options).err; };
  EXPECT_EQ(notes(" --threads 1"), "");
  EXPECT_NE(notes(" --threads 3").find("headrace: note: the rates of "), std::string::npos);
  EXPECT_NE(notes(" --threads 1 --dtype float32").find("headrace: note: the rates of "), std::string::npos);
  EXPECT_GT(slow.at("predicted_ms"), nominal.at("predicted_ms"));
  profile["mha_gflops"] = 0.0;
  write_file(file, profile.dump());
  expect_error(route + file.string(), 2);
  expect_error(route + "no_such_file", 2);
  expect_error(route + folder.path().string(), 2);
}

}  // namespace
}  // namespace headrace
