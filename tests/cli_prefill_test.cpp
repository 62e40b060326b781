// SPDX-License-Identifier: Apache-2.0
// headrace prefill.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "support/cli.h"
#include "support/files.h"

namespace headrace {
namespace {

using test::copy_config;
using test::Json;
using test::recording;
using test::Result;
using test::run;
using test::TemporaryFolder;

void expect_prefilled(const std::string& arguments, std::int64_t tokens) {
  SCOPED_TRACE(arguments);
  const Result result = run("prefill --json " + arguments);
  ASSERT_EQ(result.status, 0) << result.err << result.out;
  const Json document = result.json();
  EXPECT_EQ(document.at("schema"), 1);
  EXPECT_EQ(document.at("check").at("pass"), true);
  EXPECT_EQ(document.at("check").at("rows"), tokens);
  EXPECT_EQ(document.at("tokens"), tokens);
  std::int64_t by_path = 0;
  for (const Json& n : document.at("tokens_by_path")) {
    by_path += n.get<std::int64_t>();
  }
  EXPECT_EQ(by_path, tokens);
  double total = 0.0;
  for (const char* stage : {"plan", "project", "append", "select", "attend", "output"}) {
    total += document.at("stages_ms").at(stage).get<double>();
  }
  EXPECT_NEAR(document.at("total_ms").get<double>(), total, 1e-6 * total);
  EXPECT_GT(document.at("peak_memory_bytes"), 0);
}

TEST(Cli, PrefillPassesItsCheck) {
  const TemporaryFolder folder;
  copy_config("glm5_next", folder.path());
  const std::string batch = " --batch 100,2x10+69,1+100,0,0+5 --check all ";
  const std::string random = "--model " + folder.path().string() + batch;
  for (const char* options :
       {"", "--dtype float32", "--prefill-chunk 7", "--force masked_mha", "--force topk_mqa --dtype float32",
        "--layer 1 --prefill-chunk 33", "--selection drift:0.9 --prefill-chunk 13", "--selection pooled:4:0.9",
        "--selection uniform", "--selection local", "--kv-cache-dtype fp8", "--kv-cache-dtype fp8_ds_mla --threads 1",
        "--tp 2 --seed 7 --workspace-limit 16MiB"}) {
    expect_prefilled(random + options, 121);
  }
  expect_prefilled("--model " + recording("glm_moe_dsa") + batch, 121);
}

TEST(Cli, PrefillOfNothing) {
  const TemporaryFolder folder;
  copy_config("deepseek_v32", folder.path());
  for (const char* batch : {"0", "0+70"}) {
    expect_prefilled("--check --model " + folder.path().string() + " --batch " + batch, 0);
  }
  const Result plain = run("prefill --check --batch 0 --model " + folder.path().string());
  EXPECT_NE(plain.out.find("no rows to compare"), std::string::npos) << plain.out;
  EXPECT_EQ(plain.out.find("\ncontext "), std::string::npos) << plain.out;
}

TEST(Cli, PrefillForPeople) {
  const TemporaryFolder folder;
  copy_config("deepseek_v32", folder.path());
  const Result result = run("prefill --check --batch 40,1+200 --model " + folder.path().string());
  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* text : {"random, seed 0", "dense_mha", "attend", "tokens/s", "peak", "check     pass"}) {
    EXPECT_NE(result.out.find(text), std::string::npos) << text << "\n" << result.out;
  }
  EXPECT_EQ(result.err, "");
}

TEST(Cli, PrefillTellsTheScaleOfAnFp8Cache) {
  const std::string prefill = "prefill --check --batch 70 --model " + recording("deepseek_v32");
  EXPECT_TRUE(run(prefill + " --json").json().at("kv_cache_scale").is_null());
  const std::string fp8 = prefill + " --kv-cache-dtype fp8";
  EXPECT_EQ(run(fp8 + " --json").json().at("kv_cache_scale"), 1.0);
  const Result result = run(fp8 + " --kv-cache-scale 0.25");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("fp8 scale 0.25 (--kv-cache-scale)\n"), std::string::npos) << result.out;
  const Json document = run(fp8 + " --kv-cache-scale 0.25 --json").json();
  EXPECT_EQ(document.at("kv_cache_scale"), 0.25);
  EXPECT_EQ(document.at("check").at("pass"), true);
}

TEST(Cli, PrefillAtATrueShape) { expect_prefilled("--model glm-5.3-flash --tp 8 --batch 5,2+9 --check", 7); }

}  // namespace
}  // namespace headrace
