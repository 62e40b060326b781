// SPDX-License-Identifier: Apache-2.0
// headrace doctor and headrace validate.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>

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

}  // namespace
}  // namespace headrace
