// SPDX-License-Identifier: Apache-2.0
// headrace doctor and headrace validate.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>

#include "headrace/profile.h"
#include "support/cli.h"
#include "support/files.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::Json;
using test::read_file;
using test::recording;
using test::Result;
using test::run;
using test::TemporaryFolder;
using test::write_file;

TEST(Cli, DoctorJsonHasItsSchema) {
  const Result result = run("doctor --json --profile nominal");
  ASSERT_EQ(result.status, 0) << result.err;
  const Json document = result.json();
  EXPECT_EQ(document.at("schema"), 1);
  for (const char* object : {"machine", "instruction_sets", "dependencies", "profile"}) {
    EXPECT_TRUE(document.at(object).is_object()) << object;
  }
  EXPECT_EQ(document.at("profile").at("measured on"), "nominal");
  ASSERT_EQ(document.at("paths").size(), 3U);
  EXPECT_EQ(document.at("paths").at(0).at("path"), "dense_mha");
  EXPECT_FALSE(document.at("paths").at(0).at("cache_formats").at("bfloat16").get<std::string>().empty());
}

TEST(Cli, DoctorSaysWhereItsRatesAreFrom) {
  const auto kept_in = [](const std::string& profile) {
    return run("doctor --json --profile " + profile).json().at("profile").at("kept in").get<std::string>();
  };
  EXPECT_EQ(kept_in("nominal").find("nowhere"), 0U);
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "profile.json").string();
  save_profile(Profile::nominal_cpu(DType::bfloat16), file);
  EXPECT_EQ(kept_in(file), file);
}

/// The width of a recording's layers.0.topk_indices.
std::int64_t index_width(const std::string& recording) {
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, recording.data(), sizeof header_bytes);
  return Json::parse(recording.substr(8, header_bytes)).at("layers.0.topk_indices").at("shape").at(1);
}

/// Sets one entry of a recording's layers.0.topk_indices.
void set_index(std::string& recording, std::int64_t row, std::int64_t column, std::int32_t value) {
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, recording.data(), sizeof header_bytes);
  const Json tensor = Json::parse(recording.substr(8, header_bytes)).at("layers.0.topk_indices");
  const std::int64_t width = tensor.at("shape").at(1);
  const std::size_t entry = 8 + header_bytes + tensor.at("data_offsets").at(0).get<std::size_t>() +
                            static_cast<std::size_t>(row * width + column) * sizeof value;
  ASSERT_LE(entry + sizeof value, recording.size());
  std::memcpy(recording.data() + entry, &value, sizeof value);
}

TEST(Cli, ValidateCountsWhatIsWrongInARecording) {
  const std::string good = recording("deepseek_v32") + "/recording.safetensors";
  const Result clean = run("validate --json --recording " + good);
  EXPECT_EQ(clean.status, 0) << clean.err;
  EXPECT_EQ(clean.json().at("clean"), true);

  std::string bytes = read_file(good);
  ASSERT_NO_FATAL_FAILURE(set_index(bytes, 250, 0, 17));
  ASSERT_NO_FATAL_FAILURE(set_index(bytes, 250, 1, 17));
  ASSERT_NO_FATAL_FAILURE(set_index(bytes, 260, 0, 261));
  const TemporaryFolder folder;
  const fs::path bad = folder.path() / "recording.safetensors";
  write_file(bad, bytes);
  const Result result = run("validate --json --recording " + bad.string());
  EXPECT_EQ(result.status, 1) << result.err;
  EXPECT_EQ(result.json().at("clean"), false);
  const Json selection = result.json().at("layers").at(0).at("selection");
  EXPECT_GE(selection.at("repeated"), 1);
  EXPECT_EQ(selection.at("future"), 1);
  EXPECT_EQ(run("validate --recording " + bad.string()).status, 1);
  expect_error("validate --recording no_such_file", 2);
}

TEST(Cli, ValidateFindsRowsThatSelectNothing) {
  std::string bytes = read_file(recording("deepseek_v32") + "/recording.safetensors");
  for (std::int64_t column = 0; column < index_width(bytes); ++column) {
    ASSERT_NO_FATAL_FAILURE(set_index(bytes, 250, column, -1));
  }
  const TemporaryFolder folder;
  const fs::path bad = folder.path() / "recording.safetensors";
  write_file(bad, bytes);
  const Result json = run("validate --json --recording " + bad.string());
  EXPECT_EQ(json.status, 1) << json.err;
  EXPECT_EQ(json.json().at("layers").at(0).at("clean"), false);
  EXPECT_EQ(json.json().at("layers").at(0).at("selection").at("empty_rows"), 1);
  const Result text = run("validate --recording " + bad.string());
  EXPECT_EQ(text.status, 1);
  for (const char* words : {"empty", "counts", "not clean"}) {
    EXPECT_NE(text.out.find(words), std::string::npos) << text.out;
  }
}

}  // namespace
}  // namespace headrace
