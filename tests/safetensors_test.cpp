// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <random>

#include "headrace/recording.h"
#include "io/checkpoint_folder.h"
#include "io/float_rows.h"
#include "io/json.h"
#include "support/errors.h"
#include "support/files.h"

namespace headrace::io {
namespace {

using test::safetensors_bytes;
using test::SafetensorsWriter;
using test::TemporaryFolder;
using test::throws_error;
using test::write_file;

class SafetensorsTest : public ::testing::Test {
 protected:
  std::filesystem::path write(std::string_view bytes) const {
    write_file(file(), bytes);
    return file();
  }
  std::filesystem::path file() const { return folder_.path() / "file.safetensors"; }

  TemporaryFolder folder_;
};

TEST_F(SafetensorsTest, ReadsEveryTensorAtEveryAlignment) {
  SafetensorsWriter writer;
  writer.add<std::uint8_t>("first", {3}, {1, 2, 3});  // leaves the others at odd addresses
  writer.add<float>("matrix", {2, 2}, {1.0F, -2.0F, 3.5F, 0.0F});
  writer.add<std::int32_t>("indices", {2}, {-1, 7});
  writer.add<float>("scalar", {}, {42.0F});
  writer.add<float>("nothing", {0, 5}, {});
  for (int padding = 0; padding < 9; ++padding) {
    const Safetensors stored(write(writer.bytes(padding)));
    EXPECT_EQ(stored.names(), (std::vector<std::string>{"first", "indices", "matrix", "nothing", "scalar"}));
    EXPECT_TRUE(stored.contains("matrix"));
    EXPECT_FALSE(stored.contains("matri"));
    const StoredTensor matrix = stored.tensor("matrix");
    EXPECT_EQ(matrix.dtype, DType::float32);
    EXPECT_EQ(matrix.shape, (std::vector<std::int64_t>{2, 2}));
    ASSERT_EQ(matrix.bytes.size(), 16U);
    float values[4];
    std::memcpy(values, matrix.bytes.data(), sizeof(values));
    EXPECT_EQ(values[2], 3.5F);
    EXPECT_TRUE(stored.tensor("nothing").bytes.empty());
    EXPECT_TRUE(stored.tensor("scalar").shape.empty());
    std::vector<float> row(2);
    FloatRows(matrix).read(1, 0, row);
    EXPECT_EQ(row, (std::vector<float>{3.5F, 0.0F}));
  }
}

TEST_F(SafetensorsTest, NamesMissingTensorsAndUnusableTypes) {
  SafetensorsWriter writer;
  writer.add<float>("here", {1}, {0.0F});
  writer.add_bytes("double", "F64", {1}, "12345678");
  writer.add_bytes("half bytes", "F4", {4}, "ab");
  const Safetensors stored(write(writer.bytes()));
  EXPECT_TRUE(throws_error([&] { (void)stored.tensor("gone"); }, "gone: expected a tensor of"));
  EXPECT_TRUE(throws_error([&] { (void)stored.tensor("double"); }, "double: expected F32"));
  EXPECT_TRUE(throws_error([&] { (void)stored.tensor("half bytes"); }, "got F4"));
}

TEST_F(SafetensorsTest, AcceptsMetadataAndTensorsInAnyOrder) {
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3],"more":null},)"
                             R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}  )";
  const Safetensors stored(write(safetensors_bytes(header, "xyz")));
  EXPECT_EQ(stored.names().size(), 2U);
  EXPECT_EQ(std::to_integer<char>(stored.tensor("b").bytes[0]), 'y');
  EXPECT_EQ(stored.metadata("format"), "pt");
  EXPECT_EQ(stored.metadata("reading"), std::nullopt);
}

struct BadHeader {
  const char* name;
  std::string header;
  std::string data;
  std::string message;
};

std::string one(std::string_view fields) { return fmt::format(R"({{"t":{{{}}}}})", fields); }

std::string nested(int depth) {
  return R"({"t":)" + std::string(static_cast<std::size_t>(depth), '[') +
         std::string(static_cast<std::size_t>(depth), ']') + "}";
}

const BadHeader kBadHeaders[] = {
    {"empty", "", "", "expected a safetensors file, got another kind of file"},
    {"leading space", " {}", "", "expected a safetensors file, got another"},
    {"array", "[]", "", "expected a safetensors file, got another"},
    {"not JSON", "{nonsense}", "", "expected JSON"},
    {"cut", R"({"t":)", "", "expected JSON"},
    {"not UTF-8", "{\"\xff\":1}", "", "expected JSON"},
    {"number beyond double", R"({"t":1e999})", "", "expected JSON"},
    {"deep", nested(100'000), "", "nests at most 64"},
    {"duplicate tensor", R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{}})", "x", "\"t\" twice"},
    {"duplicate field", one(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])"), "x", "\"dtype\" twice"},
    {"entry is no object", R"({"t":[]})", "", "t: expected an object"},
    {"no dtype", one(R"("shape":[1],"data_offsets":[0,1])"), "x", "t.dtype: expected a value, got nothing"},
    {"no shape", one(R"("dtype":"U8","data_offsets":[0,1])"), "x", "t.shape: expected a value, got nothing"},
    {"no offsets", one(R"("dtype":"U8","shape":[1])"), "x", "t.data_offsets: expected a value, got nothing"},
    {"unknown dtype", one(R"("dtype":"F7","shape":[1],"data_offsets":[0,1])"), "x", "t.dtype"},
    {"dtype is a number", one(R"("dtype":8,"shape":[1],"data_offsets":[0,1])"), "x", "t.dtype"},
    {"shape is a number", one(R"("dtype":"U8","shape":1,"data_offsets":[0,1])"), "x", "t.shape: expected an array"},
    {"negative size", one(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), "x", "t.shape: expected integers"},
    {"fraction", one(R"("dtype":"U8","shape":[1.5],"data_offsets":[0,1])"), "x", "t.shape: expected integers"},
    {"size of 2^63", one(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1])"), "x", "t.shape"},
    {"overflow", one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,1])"), "x", "can be addressed"},
    {"overflow to 0", one(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), "", "addressed"},
    {"bits", one(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])"), "xy", "whole bytes"},
    {"one offset", one(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), "x", "t.data_offsets"},
    {"three offsets", one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,1])"), "x", "t.data_offsets"},
    {"negative offset", one(R"("dtype":"U8","shape":[1],"data_offsets":[-1,0])"), "x", "t.data_offsets"},
    {"offsets reversed", one(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])"), "x", "begin <= end"},
    {"offsets past the end", one(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])"), "x",
     "expected 2 bytes of tensor data, as its header says, got 1 bytes: the file is cut short"},
    {"too many bytes", one(R"("dtype":"U8","shape":[1],"data_offsets":[0,2])"), "xy", "1 bytes for U8 [1], got 2"},
    {"too few bytes", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,2])"), "xy", "4 bytes for F32 [1], got 2"},
    {"hole in front", one(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])"), "xy", "a hole"},
    {"bytes left over", one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])"), "xy", "1 bytes of tensor data"},
    {"no tensors but data", "{}", "x", "0 bytes of tensor data"},
    {"overlap",
     R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
     "xyz", "b.data_offsets: expected to begin at 2, where the tensor before ends, got 1 (an overlap)"},
    {"the same bytes twice",
     R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
     "xy", "an overlap"},
    {"hole between",
     R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
     "xyz", "b.data_offsets: expected to begin at 1, where the tensor before ends, got 2 (a hole)"},
    {"metadata is a list", R"({"__metadata__":[]})", "", "__metadata__: expected an object"},
    {"metadata is no string", R"({"__metadata__":{"n":1}})", "", "__metadata__.n: expected a string, got 1"},
};

TEST_F(SafetensorsTest, RefusesBadHeaders) {
  for (const BadHeader& bad : kBadHeaders) {
    SCOPED_TRACE(bad.name);
    write(safetensors_bytes(bad.header, bad.data));
    EXPECT_TRUE(throws_error([&] { Safetensors{file()}; }, bad.message));
    EXPECT_TRUE(throws_error([&] { Safetensors{file()}; }, file().string()));
  }
}

TEST_F(SafetensorsTest, RefusesBadHeaderLengths) {
  const std::string good = safetensors_bytes("{}", "");
  const auto refused = [&](std::uint64_t length, const std::string& message) {
    std::string bytes = good;
    std::memcpy(bytes.data(), &length, sizeof(length));
    write(bytes);
    EXPECT_TRUE(throws_error([&] { Safetensors{file()}; }, message)) << length;
  };
  refused(3, "expected a header of 3 bytes, as the file says, got 2 bytes: the file is cut short");
  for (const std::uint64_t length :
       {std::uint64_t{0}, std::uint64_t{1} << 32, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    refused(length, "expected a safetensors file, got another kind of file");
  }
}

TEST_F(SafetensorsTest, NamesWhatPeopleHaveInItsPlace) {
  write("version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 42\n");
  EXPECT_TRUE(throws_error([&] { Safetensors{file()}; }, "expected a safetensors file, got a pointer of git-lfs"));
  write("{\n  \"model_type\": \"glm_moe_dsa\"\n}\n");
  EXPECT_TRUE(throws_error([&] { Safetensors{file()}; }, "expected a safetensors file, got another kind of file"));
  std::filesystem::remove(file());
  std::filesystem::create_symlink("../../blobs/0123", file());
  EXPECT_TRUE(throws_error([&] { Safetensors{file()}; },
                           "expected a file, got a link to \"../../blobs/0123\", which is not there"));
}

TEST_F(SafetensorsTest, RefusesEveryTruncation) {
  SafetensorsWriter writer;
  writer.add<float>("a", {2}, {1.0F, 2.0F});
  writer.add<bfloat16>("b", {1}, {bfloat16(3.0F)});
  const std::string bytes = writer.bytes();
  EXPECT_NO_THROW(Safetensors{write(bytes)});
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    write(bytes.substr(0, size));
    EXPECT_THROW(Safetensors{file()}, Error) << "cut to " << size << " of " << bytes.size() << " bytes";
  }
}

// Whatever one byte of the header becomes, the answer is an Error or a file whose tensors lie inside it.
TEST_F(SafetensorsTest, SurvivesDamage) {
  SafetensorsWriter writer;
  writer.add<float>("a", {2, 1}, {1.0F, 2.0F});
  writer.add<std::uint8_t>("b", {3}, {1, 2, 3});
  const std::string bytes = writer.bytes();
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500; ++round) {
    std::string damaged = bytes;
    for (std::uint64_t i = 0; i <= random() % 3; ++i) {
      damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
    }
    write(damaged);
    try {
      const Safetensors stored(file());
      for (const std::string& name : stored.names()) {
        std::uint64_t sum = 0;
        for (const std::byte byte : stored.tensor(name).bytes) {
          sum += std::to_integer<std::uint64_t>(byte);
        }
        EXPECT_LE(sum, 255U * damaged.size());
      }
    } catch (const Error&) {
    }
  }
}

TEST_F(SafetensorsTest, RefusesWhatIsNoFile) {
  EXPECT_TRUE(throws_error([&] { Safetensors{file()}; }, file().string() + ": expected a file, got nothing"));
  EXPECT_TRUE(throws_error([&] { Safetensors{folder_.path()}; }, "got a folder"));
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  EXPECT_TRUE(throws_error([&] { Safetensors{file()}; }, "got a device, a pipe or a socket"));
}

TEST(Json, DescribesValuesBriefly) {
  EXPECT_EQ(describe(Json("a")), "\"a\"");
  EXPECT_EQ(describe(Json(3.5)), "3.5");
  EXPECT_EQ(describe(Json(nullptr)), "null");
  EXPECT_EQ(describe(Json::array({1, 2})), "an array of 2");
  EXPECT_EQ(describe(Json::object()), "an object");
  EXPECT_EQ(describe(Json(std::string(1000, 'x'))), "a string of 1002 characters");
}

TEST(Json, KeepsMessagesShort) {
  const std::string text = "{\"" + std::string(1 << 20, 'x') + "\n\"}";
  try {
    (void)parse_json(text, "big");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_LT(std::string(error.what()).size(), 400U);
  }
}

TEST(Json, SaysWhereAnErrorIsInPlainWords) {
  const std::pair<const char*, const char*> places[] = {
      {"", "x: expected JSON, got an error in line 1, column 1: unexpected end of input"},
      {"{\"a\": 1,}", "x: expected JSON, got an error in line 1, column 9: unexpected '}'"},
      {"{\n  \"a\": tru\n}", "x: expected JSON, got an error in line 2, column 11: invalid literal"},
      {"[1e999]", "x: expected JSON, got number overflow parsing '1e999'"}};
  for (const auto& [text, message] : places) {
    EXPECT_TRUE(throws_error([&, text = text] { (void)parse_json(text, "x"); }, message)) << text;
  }
}

TEST(Json, LimitsNestingExactly) {
  const auto nested_arrays = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW((void)parse_json(nested_arrays(64), "x"));
  EXPECT_THROW((void)parse_json(nested_arrays(65), "x"), Error);
}

class RecordingTest : public SafetensorsTest {
 protected:
  static SafetensorsWriter layer(std::int64_t rows, std::int64_t hidden, std::int64_t out_rows,
                                 std::int64_t out_hidden) {
    SafetensorsWriter writer;
    writer.add("layers.3.hidden_states", {rows, hidden}, std::vector<float>(static_cast<std::size_t>(rows * hidden)));
    writer.add("layers.3.output", {out_rows, out_hidden},
               std::vector<float>(static_cast<std::size_t>(out_rows * out_hidden)));
    return writer;
  }
  void expect_error(const SafetensorsWriter& writer, const std::string& message) const {
    write(writer.bytes());
    EXPECT_TRUE(throws_error([&] { (void)load_recording(file()); }, message));
  }
};

TEST_F(RecordingTest, LoadsLayersInOrder) {
  SafetensorsWriter writer;
  for (const int layer : {10, 9}) {
    writer.add<float>(fmt::format("layers.{}.hidden_states", layer), {2, 1}, {1.0F * static_cast<float>(layer), 2.0F});
    writer.add<float>(fmt::format("layers.{}.output", layer), {2, 1}, {3.0F, 4.0F});
  }
  writer.add<std::int32_t>("layers.9.topk_indices", {2, 2}, {0, -1, 0, 1});
  writer.add<float>("layers.x.output", {1}, {0.0F});  // not a layer's: ignored, as any other name
  const std::vector<RecordedLayer> layers = load_recording(write(writer.bytes(1)));
  ASSERT_EQ(layers.size(), 2U);
  EXPECT_EQ(layers[0].layer, 9);
  EXPECT_EQ(layers[1].layer, 10);
  EXPECT_EQ(layers[0].hidden_states.view_as<float>()(0, 0), 9.0F);
  EXPECT_EQ(layers[1].output.view_as<float>()(1, 0), 4.0F);
  EXPECT_EQ(layers[0].topk_indices.view_as<std::int32_t>()(0, 1), -1);
  EXPECT_TRUE(layers[1].topk_indices.empty());
}

TEST_F(RecordingTest, LoadsWhatTransformersRecorded) {
  const std::filesystem::path data = std::filesystem::path(HEADRACE_TEST_DATA) / "recordings";
  const std::vector<RecordedLayer> next = load_recording(data / "glm5_next" / "recording.safetensors");
  ASSERT_EQ(next.size(), 2U);
  EXPECT_EQ(next[0].topk_indices.dim(1), 67);
  EXPECT_TRUE(next[1].topk_indices.empty());
  EXPECT_EQ(next[1].output.dim(0), 300);
  // The first query sees one key, which is selected; the recorder writes -1 for everything else.
  const auto selected = next[0].topk_indices.view_as<std::int32_t>();
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < selected.dim(1); ++i) {
    EXPECT_TRUE(selected(0, i) == 0 || selected(0, i) == -1);
    count += selected(0, i) == 0 ? 1 : 0;
  }
  EXPECT_EQ(count, 1);
}

TEST_F(RecordingTest, RefusesDisagreeingTensors) {
  expect_error(SafetensorsWriter(), "expected a recording");
  expect_error(layer(2, 3, 1, 3), "layers.3.output");
  expect_error(layer(2, 3, 2, 4), "layers.3.output");
  expect_error(layer(0, 3, 0, 3), "layers.3.hidden_states: expected a matrix that is not empty");

  SafetensorsWriter lonely;
  lonely.add<float>("layers.0.hidden_states", {1, 1}, {1.0F});
  expect_error(lonely, "layers.0.output: expected a tensor of");

  SafetensorsWriter rows = layer(2, 3, 2, 3);
  rows.add<std::int32_t>("layers.3.topk_indices", {1, 2}, {0, 1});
  expect_error(rows, "layers.3.topk_indices");

  SafetensorsWriter type = layer(2, 3, 2, 3);
  type.add<float>("layers.3.topk_indices", {2, 1}, {0.0F, 1.0F});
  expect_error(type, "layers.3.topk_indices");

  SafetensorsWriter rank = layer(2, 3, 2, 3);
  rank.add<std::int32_t>("layers.3.topk_indices", {2}, {0, 1});
  expect_error(rank, "layers.3.topk_indices: expected a matrix");
}

class CheckpointFolderTest : public SafetensorsTest {
 protected:
  void write_shard(const std::string& name, const std::string& tensor, float value) const {
    SafetensorsWriter writer;
    writer.add<float>(tensor, {1}, {value});
    write_file(folder_.path() / name, writer.bytes());
  }
  void write_index(std::string_view json) const { write_file(folder_.path() / "model.safetensors.index.json", json); }
  static float value_of(const StoredTensor& tensor) {
    std::vector<float> value(1);
    FloatRows(tensor).read(0, 0, value);
    return value[0];
  }
};

TEST_F(CheckpointFolderTest, OpensOnlyTheShardsItNeeds) {
  write_shard("one.safetensors", "a", 1.0F);
  write_shard("two.safetensors", "b", 2.0F);
  write_file(folder_.path() / "damaged.safetensors", "rubbish");
  write_index(R"({"metadata":{"total_size":8},"weight_map":{"a":"one.safetensors","b":"two.safetensors",)"
              R"("c":"damaged.safetensors","d":"missing.safetensors","e":"two.safetensors"}})");
  CheckpointFolder checkpoint(folder_.path());
  EXPECT_EQ(value_of(checkpoint.tensor("b", "F32")), 2.0F);
  EXPECT_EQ(value_of(checkpoint.tensor("a", "F32")), 1.0F);
  EXPECT_TRUE(checkpoint.contains("d"));
  EXPECT_FALSE(checkpoint.contains("z"));
  EXPECT_TRUE(throws_error([&] { (void)checkpoint.tensor("c", "F32"); }, "damaged.safetensors"));
  EXPECT_TRUE(
      throws_error([&] { (void)checkpoint.tensor("d", "F32"); }, "missing.safetensors: expected a file, got nothing"));
  EXPECT_TRUE(throws_error([&] { (void)checkpoint.tensor("e", "F32"); }, "e: expected a tensor of"));
  EXPECT_TRUE(throws_error([&] { (void)checkpoint.tensor("z", "F32"); }, "z: expected a tensor of"));
}

TEST_F(CheckpointFolderTest, TakesTheSingleFileFirst) {
  write_shard("model.safetensors", "a", 5.0F);
  write_index("rubbish");
  CheckpointFolder checkpoint(folder_.path());
  EXPECT_EQ(value_of(checkpoint.tensor("a", "F32")), 5.0F);
  EXPECT_TRUE(checkpoint.contains("a"));
  EXPECT_FALSE(checkpoint.contains("b"));
}

TEST_F(CheckpointFolderTest, RefusesBadIndices) {
  const auto open = [&] { CheckpointFolder{folder_.path()}; };
  EXPECT_TRUE(throws_error(open, "got neither"));
  EXPECT_TRUE(throws_error([&] { CheckpointFolder{folder_.path() / "nowhere"}; }, "got neither"));
  for (const std::string name : {"model.safetensors", "model.safetensors.index.json"}) {
    std::filesystem::create_symlink("blob", folder_.path() / name);
    EXPECT_TRUE(throws_error(open, name + ": expected a file, got a link to \"blob\""));
    std::filesystem::remove(folder_.path() / name);
  }
  write_file(folder_.path() / "model-00002-of-00002.safetensors", "");
  write_file(folder_.path() / "model-00001-of-00002.safetensors", "");
  EXPECT_TRUE(throws_error(open, "got neither, but model-00001-of-00002.safetensors, a shard without the index"));
  for (const std::string json : {"", "rubbish", "{\"weight_map\":", "{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}"}) {
    write_index(json);
    EXPECT_TRUE(throws_error(open, "model.safetensors.index.json: expected")) << json;
  }
  for (const std::string json : {"[]", "null", "{}", "{\"weight_map\":[]}"}) {
    write_index(json);
    EXPECT_TRUE(throws_error(open, "weight_map: expected an object")) << json;
  }
  for (const std::string shard :
       {"\"../x\"", "\"a/b\"", "\"/etc/passwd\"", "\"..\"", "\".\"", "\"\"", "1", "\"a\\u0000b\"", "\"a\\\\b\""}) {
    write_index(R"({"weight_map":{"w":)" + shard + "}}");
    EXPECT_TRUE(throws_error(open, "weight_map.w: expected the name of a file in the same folder")) << shard;
  }
}

}  // namespace
}  // namespace headrace::io
