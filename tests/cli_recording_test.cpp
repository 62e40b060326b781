// SPDX-License-Identifier: Apache-2.0
// What recordings may hold: selections in padded buffers, of layers that share one, and the name of a reading.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/recording.h"
#include "support/cli.h"
#include "support/files.h"

namespace headrace {
namespace {

using test::Json;
using test::read_file;
using test::recording;
using test::Result;
using test::run;
using test::safetensors_bytes;
using test::SafetensorsWriter;
using test::TemporaryFolder;
using test::write_file;

// ---- selections, as recordings hold them
// ------------------------------------------------------------------------------

/// One recorded layer, to be changed and written again.
struct EditedLayer {
  RecordedLayer layer;
  std::vector<std::vector<std::int32_t>> rows;

  EditedLayer(const std::string& name, std::size_t index)
      : layer(std::move(load_recording(recording(name) + "/recording.safetensors").at(index))) {
    if (!layer.topk_indices.empty()) {
      const auto stored = layer.topk_indices.view_as<std::int32_t>();
      for (std::int64_t row = 0; row < stored.dim(0); ++row) {
        rows.emplace_back(stored.at(row), stored.at(row) + stored.dim(1));
      }
    }
  }

  void add_to(SafetensorsWriter& writer) const {
    const std::string prefix = "layers." + std::to_string(layer.layer) + ".";
    add(writer, prefix + "hidden_states", layer.hidden_states);
    add(writer, prefix + "output", layer.output);
    if (rows.empty()) {
      return;
    }
    std::vector<std::int32_t> entries;
    for (const auto& row : rows) {
      entries.insert(entries.end(), row.begin(), row.end());
    }
    writer.add(prefix + "topk_indices",
               {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(rows.front().size())}, entries);
  }

 private:
  static void add(SafetensorsWriter& writer, const std::string& name, const Tensor& tensor) {
    const auto values = tensor.view_as<float>();
    writer.add(name, {tensor.dim(0), tensor.dim(1)}, std::vector<float>(values.data(), values.data() + values.size()));
  }
};

std::string write_recording(const TemporaryFolder& folder, const std::vector<const EditedLayer*>& layers) {
  SafetensorsWriter writer;
  for (const EditedLayer* layer : layers) {
    layer->add_to(writer);
  }
  const std::filesystem::path file = folder.path() / "recording.safetensors";
  write_file(file, writer.bytes());
  return file.string();
}

/// Text as it was before it was wrapped.
std::string unwrapped(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// As engines keep selections: columns of padding, some of it in the middle, and whatever the contract ignores.
void pad(EditedLayer& layer, std::size_t width) {
  for (std::size_t position = 0; position < layer.rows.size(); ++position) {
    auto& row = layer.rows[position];
    row.insert(row.begin() + 3, 5, -1);
    row.push_back(row.front());                              // a key once more
    row.push_back(static_cast<std::int32_t>(position + 1));  // the future
    row.push_back(1 << 30);                                  // no key at all
    row.resize(width, -1);
  }
}

TEST(Cli, VerifyReadsPaddedSelections) {
  for (const char* name : {"glm5_next", "deepseek_v32"}) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    EditedLayer layer(name, 0);
    pad(layer, 128);
    const std::string file = write_recording(folder, {&layer});
    for (const char* selection : {"recorded", "indexer"}) {
      const Result result =
          run("verify --json --model " + recording(name) + " --recording " + file + " --selection " + selection);
      EXPECT_EQ(result.status, 0) << result.out << result.err;
      const Json verified = result.json().at("layers").at(0);
      EXPECT_EQ(verified.at("wide_rows").at("rows"), 0);
      if (std::string(selection) == "indexer") {
        EXPECT_EQ(verified.at("selection_match"), 1.0);
      }
    }
    const Json validated = run("validate --json --recording " + file).json();
    EXPECT_GT(validated.at("layers").at(0).at("selection").at("repeated"), 250);
  }
}

TEST(Cli, VerifyTellsOfRowsThatSelectMoreThanTheRuleAllows) {
  const TemporaryFolder folder;
  EditedLayer layer("deepseek_v32", 0);
  for (std::size_t position : {std::size_t{200}, std::size_t{250}}) {
    for (std::int32_t key = 0; key < 10; ++key) {
      layer.rows[position].push_back(key);
    }
  }
  pad(layer, 128);
  const std::string verify =
      "verify --model " + recording("deepseek_v32") + " --recording " + write_recording(folder, {&layer});
  const Json verified = run(verify + " --json").json().at("layers").at(0);
  EXPECT_EQ(verified.at("wide_rows").at("rows"), 2);
  EXPECT_EQ(verified.at("wide_rows").at("first"), 200);
  const Result text = run(verify);
  EXPECT_EQ(text.status, 1);  // the recorded output was made without those keys
  EXPECT_NE(unwrapped(text.out).find("note: 2 rows of the recorded selection select more keys than the rule lets them, "
                                     "the first at position 200"),
            std::string::npos)
      << text.out;
}

TEST(Cli, VerifyTakesALayersOwnRecordedSelection) {
  // Of glm5_next layer 1 shares the selection of layer 0.
  const TemporaryFolder folder;
  EditedLayer source("glm5_next", 0);
  EditedLayer shared("glm5_next", 1);
  ASSERT_TRUE(shared.rows.empty());
  shared.rows = source.rows;
  const std::string model = "verify --model " + recording("glm5_next") + " --recording ";
  const Result alone = run(model + write_recording(folder, {&shared}) + " --json");
  EXPECT_EQ(alone.status, 0) << alone.err;
  EXPECT_TRUE(alone.json().at("layers").at(0).at("differs_from_source").is_null());

  const Result indexer = run(model + write_recording(folder, {&shared}) + " --selection indexer");
  EXPECT_EQ(indexer.status, 2);
  EXPECT_NE(indexer.err.find("the layer that scores for layer 1 (or --selection recorded)"), std::string::npos)
      << indexer.err;

  source.rows[100][2] = source.rows[100][3];  // which the output of layer 1 was not made with
  const std::string both = model + write_recording(folder, {&source, &shared}) + " --layer 1";
  const Result result = run(both + " --json");
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  const Json differs = result.json().at("layers").at(0).at("differs_from_source");
  EXPECT_EQ(differs.at("rows"), 1);
  EXPECT_EQ(differs.at("first"), 100);
  const std::string text = run(both).out;
  EXPECT_NE(
      unwrapped(text).find("note: the layer's own recorded selection was used; 1 row of it differs from that of the "
                           "layer that scores for it, the first at position 100"),
      std::string::npos)
      << text;

  // A source that was recorded with a shorter prompt is not compared, and that is said.
  constexpr std::int64_t kRows = 250;
  const EditedLayer whole("glm5_next", 0);
  SafetensorsWriter writer;
  shared.add_to(writer);
  const auto first_rows = [](const Tensor& tensor) {
    const float* const values = tensor.view_as<float>().data();
    return std::vector<float>(values, values + kRows * tensor.dim(1));
  };
  writer.add("layers.0.hidden_states", {kRows, whole.layer.hidden_states.dim(1)},
             first_rows(whole.layer.hidden_states));
  writer.add("layers.0.output", {kRows, whole.layer.output.dim(1)}, first_rows(whole.layer.output));
  std::vector<std::int32_t> entries;
  for (std::size_t row = 0; row < kRows; ++row) {
    entries.insert(entries.end(), whole.rows[row].begin(), whole.rows[row].end());
  }
  writer.add("layers.0.topk_indices", {kRows, static_cast<std::int64_t>(whole.rows[0].size())}, entries);
  write_file(folder.path() / "recording.safetensors", writer.bytes());
  const Json shorter = run(both + " --json").json().at("layers").at(0);
  EXPECT_TRUE(shorter.at("differs_from_source").is_null());
  EXPECT_EQ(shorter.at("rows_of_source"), kRows);
  EXPECT_NE(unwrapped(run(both).out).find("that of the layer that scores for it has 250 rows and was not compared"),
            std::string::npos);
}

// ---- readings
// ---------------------------------------------------------------------------------------------------------

std::string recording_of_reading(const TemporaryFolder& folder, const std::string& reading) {
  const std::string stored = read_file(recording("deepseek_v32") + "/recording.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, stored.data(), sizeof length);
  Json header = Json::parse(stored.substr(sizeof length, length));
  header["__metadata__"]["reading"] = reading;
  const std::filesystem::path file = folder.path() / "recording.safetensors";
  write_file(file, safetensors_bytes(header.dump(), std::string_view(stored).substr(sizeof length + length)));
  return file.string();
}

TEST(Cli, VerifyTakesTheReadingThatARecordingNames) {
  const TemporaryFolder folder;
  const std::string verify = "verify --json --model " + recording("deepseek_v32") + " --recording ";
  const Json unnamed = run(verify + recording("deepseek_v32") + "/recording.safetensors").json();
  EXPECT_EQ(unnamed.at("reading"), "engines");
  for (const char* reading : {"engines", "transformers"}) {
    const Result result = run(verify + recording_of_reading(folder, reading));
    EXPECT_EQ(result.status, 0) << result.err;
    const Json document = result.json();
    EXPECT_EQ(document.at("reading"), reading);
    ASSERT_EQ(document.at("readings").size(), 1U);
    EXPECT_EQ(document.at("readings").at(0).at("reading"), reading);
    EXPECT_EQ(document.at("readings").at(0).at("pass"), true);
    EXPECT_EQ(document.at("recorded_reading"), reading);
    const Result text = run("verify --model " + recording("deepseek_v32") + " --recording " +
                            (folder.path() / "recording.safetensors").string());
    EXPECT_NE(text.out.find(std::string("\nreading ") + reading + ", as the recording says\n"), std::string::npos)
        << text.out;
  }
  const Result wrong = run(verify + recording_of_reading(folder, "vllm"));
  EXPECT_EQ(wrong.status, 2);
  EXPECT_NE(wrong.err.find("recording.safetensors: __metadata__.reading: expected engines or transformers, got "
                           "\"vllm\""),
            std::string::npos)
      << wrong.err;
}

}  // namespace
}  // namespace headrace
