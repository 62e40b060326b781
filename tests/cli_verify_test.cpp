// SPDX-License-Identifier: Apache-2.0
// headrace verify, on recordings right and wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "support/cli.h"
#include "support/files.h"

namespace headrace {
namespace {

using test::copy_model;
using test::Json;
using test::read_file;
using test::recording;
using test::recordings;
using test::Result;
using test::run;
using test::TemporaryFolder;
using test::write_file;

void expect_path(const Json& path) {
  if (!path.at("tolerance").is_null()) {
    EXPECT_LE(path.at("rel_error"), path.at("tolerance"));
    EXPECT_LE(path.at("max_row_error"), path.at("max_row_tolerance"));
  }
  EXPECT_LE(path.at("attention_error"), path.at("attention_tolerance"));
  EXPECT_LE(path.at("lse_error"), path.at("lse_tolerance"));
  EXPECT_GT(path.at("attention_error"), 0.0);
  EXPECT_GT(path.at("rel_error"), 0.0);
  EXPECT_EQ(path.at("pass"), true);
}

void expect_rounding(const Json& rounding) {
  const Json& layer = rounding.at("float32_layer");
  EXPECT_LE(layer.at("rel_error"), layer.at("tolerance"));
  EXPECT_LE(layer.at("max_row_error"), layer.at("max_row_tolerance"));
  EXPECT_LE(layer.at("max_row_tolerance"), 1.1e-5);
  for (const char* error : {"query_error", "latent_error", "output_error"}) {
    EXPECT_LE(rounding.at(error), rounding.at("stage_tolerance"));
  }
  EXPECT_EQ(rounding.at("wrong_cache_rows"), 0);
  EXPECT_EQ(rounding.at("pass"), true);
}

/// Both paths that can serve any prompt have errors to show; dense_mha is skipped with reasons and serves the covered
/// rows.
void expect_verified(const Json& document) {
  EXPECT_EQ(document.at("schema"), 1);
  EXPECT_EQ(document.at("pass"), true);
  ASSERT_FALSE(document.at("layers").empty());
  for (const Json& layer : document.at("layers")) {
    ASSERT_EQ(layer.at("paths").size(), 2U);
    EXPECT_EQ(layer.at("paths").at(0).at("path"), "masked_mha");
    EXPECT_EQ(layer.at("paths").at(1).at("path"), "topk_mqa");
    for (const Json& path : layer.at("paths")) {
      expect_path(path);
    }
    ASSERT_EQ(layer.at("skipped").size(), 1U);
    EXPECT_EQ(layer.at("skipped").at(0).at("path"), "dense_mha");
    EXPECT_FALSE(layer.at("skipped").at(0).at("unmet").empty());
    expect_path(layer.at("skipped").at(0).at("covered_prefix"));
  }
}

TEST(Cli, VerifyPassesOnEveryRecording) {
  for (const std::string& name : recordings()) {
    SCOPED_TRACE(name);
    const Result result = run("verify --json --model " + recording(name));
    EXPECT_EQ(result.status, 0) << result.err;
    const Json document = result.json();
    expect_verified(document);
    for (const Json& layer : document.at("layers")) {
      EXPECT_TRUE(layer.at("selection_match").is_null());
      for (const Json& path : layer.at("paths")) {
        EXPECT_EQ(path.at("rows"), name == "glm_moe_dsa_8heads" ? 200 : 300);
        EXPECT_LE(path.at("rel_error"), 3e-6);
        EXPECT_LE(path.at("max_row_error"), 1e-5);
      }
    }
  }
}

TEST(Cli, VerifyPassesInChunksAndInBfloat16) {
  for (const char* options : {"--prefill-chunk 7", "--prefill-chunk 64 --dtype bfloat16", "--kv-cache-dtype fp8"}) {
    SCOPED_TRACE(options);
    const Result result = run("verify --json --model " + recording("glm5_next") + " " + options);
    EXPECT_EQ(result.status, 0) << result.err;
    const Json document = result.json();
    expect_verified(document);
    const bool rounds = std::string(options).find("dtype") != std::string::npos;
    for (const Json& layer : document.at("layers")) {
      EXPECT_EQ(layer.at("rounding").is_null(), !rounds);
      EXPECT_EQ(layer.at("paths").at(0).at("tolerance").is_null(), rounds);
      if (rounds) {
        expect_rounding(layer.at("rounding"));
      }
    }
  }
}

TEST(Cli, VerifyMatchesSelectionsWithItsOwnIndexer) {
  for (const std::string& name : recordings()) {
    SCOPED_TRACE(name);
    const Result result = run("verify --json --selection indexer --model " + recording(name));
    EXPECT_EQ(result.status, 0) << result.err;
    const Json document = result.json();
    expect_verified(document);
    const Json& layers = document.at("layers");
    EXPECT_EQ(layers.at(0).at("selection_match"), 1.0);
    EXPECT_TRUE(layers.at(0).at("ties").is_number_integer());
    for (const Json& layer : layers) {
      EXPECT_GE(layer.at("paths").at(0).at("rows"), 150);
    }
    if (name == "glm5_next") {
      ASSERT_EQ(layers.size(), 2U);
      EXPECT_TRUE(layers.at(1).at("selection_match").is_null());
      EXPECT_TRUE(layers.at(1).at("ties").is_null());
    }
  }
}

TEST(Cli, VerifyOfAForcedPath) {
  const std::string verify = "verify --json --model " + recording("glm_moe_dsa");
  const Result able = run(verify + " --force topk_mqa");
  EXPECT_EQ(able.status, 0);
  EXPECT_EQ(able.json().at("layers").at(0).at("paths").size(), 1U);
  const Result unable = run(verify + " --force dense_mha");
  EXPECT_EQ(unable.status, 1);
  EXPECT_EQ(unable.json().at("pass"), false);
  const Json layer = unable.json().at("layers").at(0);
  EXPECT_TRUE(layer.at("paths").empty());
  EXPECT_EQ(layer.at("cannot_run"), true);
  const Result plain = run("verify --model " + recording("glm_moe_dsa") + " --force dense_mha");
  EXPECT_EQ(plain.status, 1);
  EXPECT_NE(plain.out.find("layer 0: cannot run\n"), std::string::npos) << plain.out;
  EXPECT_NE(plain.out.find("--reading engines: FAIL\n  --reading transformers: cannot run\n"), std::string::npos)
      << plain.out;
  EXPECT_NE(plain.out.find("--force: dense_mha cannot run\n"), std::string::npos) << plain.out;
}

TEST(Cli, VerifyKeepsItsDefaultsWhereverJsonStands) {
  const std::string verify = "verify --layer 0 --model " + recording("glm5_next");
  const Result before = run("--json " + verify);
  const Result after = run(verify + " --json");
  EXPECT_EQ(before.status, 0);
  EXPECT_EQ(before.json().at("dtype"), "float32");
  EXPECT_EQ(before.json().at("selection"), "recorded");
  EXPECT_EQ(before.out, after.out);
}

TEST(Cli, VerifyTellsWhatASelectionMatchHasToBe) {
  const std::string verify =
      "verify --selection indexer --dtype bfloat16 --layer 0 --model " + recording("deepseek_v32");
  const Json layer = run(verify + " --json").json().at("layers").at(0);
  EXPECT_EQ(layer.at("selection_match_required"), 0.95);
  const Json& path = layer.at("paths").at(0);
  EXPECT_LT(path.at("rows"), path.at("rows_run"));
  const Result plain = run(verify);
  EXPECT_NE(plain.out.find("at least 0.95 to pass"), std::string::npos) << plain.out;
  EXPECT_NE(plain.out.find(" " + path.at("rows").dump() + "/300 "), std::string::npos) << plain.out;
  const bool few = 2 * path.at("rows").get<int>() < path.at("rows_run").get<int>();
  EXPECT_EQ(plain.out.find("more than half") != std::string::npos, few) << plain.out;
}

TEST(Cli, VerifyNeedsAWorkspaceForEveryPath) {
  const Result result = run("verify --workspace-limit 1KiB --model " + recording("glm5_next"));
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find("headrace: --workspace-limit: dense_mha cannot run: it needs at least"), std::string::npos)
      << result.err;
}

TEST(Cli, VerifyOfAPresetSaysThatItHasNoWeights) {
  const Result result = run("verify --model glm-5");
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find("the preset \"glm-5\", which has no weights"), std::string::npos) << result.err;
}

TEST(Cli, VerifyNamesARecordingAndTheModelItDoesNotFit) {
  const std::string file = recording("glm5_next") + "/recording.safetensors";
  const Result result = run("verify --model " + recording("deepseek_v32") + " --recording " + file);
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find(file), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(recording("deepseek_v32")), std::string::npos) << result.err;
}

TEST(Cli, VerifyFailsOnAWrongEpsilon) {
  const TemporaryFolder folder;
  copy_model("glm5_next", folder.path(), [](Json& config) { config["text_config"]["rms_norm_eps"] = 1e-3; });
  const Result result = run("verify --json --model " + folder.path().string());
  EXPECT_EQ(result.status, 1) << result.err;
  EXPECT_EQ(result.json().at("pass"), false);
  EXPECT_GT(result.json().at("layers").at(0).at("paths").at(0).at("rel_error"), 3e-6);
  // Where the dtype and the format round more than that, too: the layer is compared in float32 there.
  for (const char* options : {" --dtype bfloat16", " --kv-cache-dtype fp8", " --dtype bfloat16 --kv-cache-dtype fp8"}) {
    const Result rounding = run("verify --json --layer 0 --model " + folder.path().string() + options);
    EXPECT_EQ(rounding.status, 1) << options;
    EXPECT_EQ(rounding.json().at("layers").at(0).at("rounding").at("float32_layer").at("pass"), false) << options;
  }
}

TEST(Cli, VerifyFailsOnAWrongRopePairing) {
  const TemporaryFolder folder;
  copy_model("deepseek_v32", folder.path(), [](Json& config) { config["indexer_rope_interleave"] = true; });
  // The reading of transformers has the other pairs, and would pass.
  const std::string verify = "verify --json --reading engines --model " + folder.path().string();
  const Result result = run(verify + " --selection indexer");
  EXPECT_EQ(result.status, 1) << result.err;
  EXPECT_LT(result.json().at("layers").at(0).at("selection_match"), 0.99);
  // The recorded selection does not depend on it.
  EXPECT_EQ(run(verify).status, 0);
}

/// A folder's checkpoint, no longer linked, with other bytes or another header.
/// @param change  takes the header and the data
template <class Change>
void change_checkpoint(const std::filesystem::path& folder, const Change& change) {
  const std::string stored = read_file(folder / "model.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, stored.data(), sizeof length);
  Json header = Json::parse(stored.substr(sizeof length, length));
  std::string data = stored.substr(sizeof length + length);
  change(header, data);
  std::filesystem::remove(folder / "model.safetensors");
  write_file(folder / "model.safetensors", test::safetensors_bytes(header.dump(), data));
}

TEST(Cli, VerifyFailsOnADeadIndexer) {
  for (const char* dead : {"indexer.wq_b.weight", "indexer.weights_proj.weight"}) {
    const TemporaryFolder folder;
    copy_model("deepseek_v32", folder.path(), [](Json&) {});
    change_checkpoint(folder.path(), [&](const Json& header, std::string& data) {
      for (const auto& [name, tensor] : header.items()) {
        if (name.ends_with(dead)) {
          const auto begin = tensor.at("data_offsets").at(0).get<std::size_t>();
          const auto end = tensor.at("data_offsets").at(1).get<std::size_t>();
          data.replace(begin, end - begin, end - begin, '\0');
        }
      }
    });
    for (const char* dtype : {"float32", "bfloat16"}) {
      SCOPED_TRACE(std::string(dead) + ", " + dtype);
      const Result result =
          run("verify --json --selection indexer --model " + folder.path().string() + " --dtype " + dtype);
      EXPECT_EQ(result.status, 1) << result.err;
      const Json layer = result.json().at("layers").at(0);
      EXPECT_EQ(layer.at("selection_pass"), false);
      EXPECT_EQ(layer.at("undecided_rows"), layer.at("selection_rows"));
      EXPECT_EQ(layer.at("selection_rows"), 300 - 64);
    }
  }
}

TEST(Cli, VerifyRefusesACheckpointThatLacksWhatItsReadingNeeds) {
  // Engines read the config as deepseek_v32, and the weights of its indexer are not there; the recording is not that of
  // the dense layer that transformers read.
  const TemporaryFolder folder;
  copy_model("deepseek_v32", folder.path(), [](Json& config) {
    config["model_type"] = "deepseek_v3";
    config.erase("layer_types");
  });
  change_checkpoint(folder.path(), [](Json& header, const std::string&) {
    Json rest = Json::object();
    for (const auto& [name, tensor] : header.items()) {
      rest[name.find(".indexer.wk.") == std::string::npos ? name : name + ".lost"] = tensor;
    }
    header = rest;
  });
  const Result result = run("verify --model " + folder.path().string());
  EXPECT_EQ(result.status, 2) << result.out;
  EXPECT_NE(result.err.find("indexer.wk.weight"), std::string::npos) << result.err;
  EXPECT_EQ(run("verify --reading transformers --model " + folder.path().string()).status, 1);
}

TEST(Cli, VerifySaysWhereReadingsCannotBeToldApart) {
  // The readings differ in the indexer's rope, and the recorded selection does without the indexer.
  const TemporaryFolder folder;
  copy_model("deepseek_v32", folder.path(), [](Json& config) { config["indexer_rope_interleave"] = true; });
  const std::string verify = "verify --model " + folder.path().string();
  const Result recorded = run(verify);
  EXPECT_EQ(recorded.status, 0) << recorded.err;
  EXPECT_NE(recorded.out.find("cannot tell the readings apart; --selection indexer"), std::string::npos)
      << recorded.out;
  EXPECT_EQ(run(verify + " --json").json().at("readings_undecided"), true);
  const Result indexer = run(verify + " --selection indexer");
  EXPECT_EQ(indexer.status, 0) << indexer.err;
  EXPECT_EQ(indexer.out.find("apart"), std::string::npos) << indexer.out;
  EXPECT_NE(indexer.out.find("reported is the reading of transformers"), std::string::npos) << indexer.out;
}

TEST(Cli, VerifyFailsOnAnotherModelsRecording) {
  const Result result = run("verify --json --model " + recording("glm5_next") + " --recording " +
                            recording("deepseek_v32") + "/recording.safetensors");
  EXPECT_EQ(result.status, 1) << result.err;
  EXPECT_EQ(result.json().at("pass"), false);
}

// ---- the scale of an fp8 cache
// ----------------------------------------------------------------------------------------

TEST(Cli, VerifyTellsWhatTheScaleOfAnFp8CacheDoes) {
  const std::string verify = "verify --kv-cache-dtype fp8 --layer 0 --model " + recording("deepseek_v32");
  const Json plain = run(verify + " --json").json();
  EXPECT_EQ(plain.at("kv_cache_scale"), 1.0);
  EXPECT_EQ(plain.at("layers").at(0).at("rounding").at("scale_effect").at("saturated"), 0);
  for (const char* scale : {"1e-3", "1000"}) {
    SCOPED_TRACE(scale);
    const std::string scaled = verify + " --kv-cache-scale " + scale;
    const Result result = run(scaled + " --json");
    EXPECT_EQ(result.status, 1) << result.err;
    const Json document = result.json();
    EXPECT_NEAR(document.at("kv_cache_scale").get<double>(), std::stod(scale), 1e-9 * std::stod(scale) + 1e-9);
    const Json effect = document.at("layers").at(0).at("rounding").at("scale_effect");
    EXPECT_EQ(effect.at("values"), 300 * 576);
    EXPECT_GT(effect.at(std::string(scale) == "1e-3" ? "saturated" : "zeroed"), 1000);
    const Result text = run(scaled);
    EXPECT_NE(text.out.find("(--kv-cache-scale)"), std::string::npos) << text.out;
    std::string unwrapped = text.out;
    std::replace(unwrapped.begin(), unwrapped.end(), '\n', ' ');
    EXPECT_NE(unwrapped.find("FAIL, the scale lets more than 1 % saturate or more than 10 % become zero"),
              std::string::npos)
        << text.out;
    const std::size_t said = text.out.find("--kv-cache-scale ");
    ASSERT_NE(said, std::string::npos) << text.out;
    const std::string suggested = text.out.substr(said, text.out.find(" would") - said);
    EXPECT_EQ(run(verify + " " + suggested).status, 0) << suggested;
  }
  EXPECT_EQ(run(verify).out.find("does not suit"), std::string::npos);
}

TEST(Cli, TheScaleOfAnFp8CacheIsAPositiveNumberBesideFp8) {
  const std::vector<std::string> commands{"verify --model " + recording("glm5_next"),
                                          "prefill --model glm-5.3-flash --batch 4"};
  for (const std::string& command : commands) {
    for (const char* scale : {"0", "-1", "nan", "inf", "1e-60", "1e60", "two", "0.5x", "\"\""}) {
      test::expect_error(command + " --kv-cache-dtype fp8 --kv-cache-scale " + scale, 2);
    }
    for (const char* format : {"", " --kv-cache-dtype bf16", " --kv-cache-dtype fp8_ds_mla"}) {
      const Result result = run(command + format + " --kv-cache-scale 0.5");
      EXPECT_EQ(result.status, 2);
      EXPECT_NE(result.err.find("--kv-cache-scale: expected --kv-cache-dtype fp8 beside it"), std::string::npos)
          << result.err;
    }
  }
}

// ---- what people read
// -------------------------------------------------------------------------------------------------

TEST(Cli, VerifyStaysWithin80Columns) {
  for (const char* options : {"", "--dtype bfloat16 --kv-cache-dtype fp8 --kv-cache-scale 1e-3 --selection indexer"}) {
    const Result result = run("verify --model " + recording("glm5_next") + " " + options);
    std::istringstream lines(result.out);
    std::string line;
    for (int i = 0; std::getline(lines, line); ++i) {
      EXPECT_TRUE(i < 2 || line.size() <= 80) << line;  // the first two are names of files
    }
  }
}

TEST(Cli, VerifyOfALayerThatIsNotRecordedListsThoseThatAre) {
  const Result result = run("verify --layer 99 --model " + recording("glm5_next"));
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.err, "headrace: --layer: expected a recorded layer: 0, 1, got 99\n");
}

}  // namespace
}  // namespace headrace
