// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <functional>
#include <map>
#include <random>

#include "headrace/layer.h"
#include "io/safetensors.h"
#include "support/errors.h"
#include "support/files.h"

namespace headrace {
namespace {

using test::SafetensorsWriter;
using test::TemporaryFolder;
using test::throws_error;
using test::write_file;

using Shape = std::vector<std::int64_t>;

std::int64_t count_of(const Shape& shape) {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) {
    n *= size;
  }
  return n;
}

// A checkpoint in memory: float32 values that bfloat16 and float16 hold exactly, so that only a wrong element, not
// rounding, can differ.
struct Source {
  Shape shape;
  std::vector<float> values;
};
using Sources = std::map<std::string, Source>;

// Layer 1 of a small k-pool model with 6 heads: heads and dims of no common size.
ModelConfig small_config() {
  ModelConfig config;
  config.model_type = "glm5_next";
  config.hidden_size = 40;
  config.num_layers = 3;
  config.geometry = {6, 24, 5, 0, 7};
  config.q_lora_rank = 10;
  config.layer_kinds = {LayerKind::linear_attention, LayerKind::sparse_attention, LayerKind::sparse_attention};
  config.shares_selection = {false, false, true};
  config.indexer = IndexerGeometry{.num_heads = 3, .head_dim = 8, .topk = 16, .kpool = true, .pool = 4, .tail = true};
  config.weight_prefix = "model.language_model.layers.";
  return config;
}

std::string prefix(std::int64_t layer) { return fmt::format("model.language_model.layers.{}.self_attn.", layer); }

std::map<std::string, Shape> small_shapes(bool indexer) {
  std::map<std::string, Shape> shapes = {{"q_a_proj.weight", {10, 40}},   {"q_a_layernorm.weight", {10}},
                                         {"q_b_proj.weight", {30, 10}},   {"kv_a_proj_with_mqa.weight", {24, 40}},
                                         {"kv_a_layernorm.weight", {24}}, {"kv_b_proj.weight", {72, 24}},
                                         {"o_proj.weight", {40, 42}}};
  if (indexer) {
    shapes.insert({{"indexer.wq_b.weight", {24, 10}},
                   {"indexer.wk.weight", {8, 40}},
                   {"indexer.k_norm.weight", {8}},
                   {"indexer.k_norm.bias", {8}},
                   {"indexer.weights_proj.weight", {3, 40}},
                   {"indexer.index_kpool_compress_ape", {4, 8}},
                   {"indexer.index_kpool_compress_gate", {8, 40}}});
  }
  return shapes;
}

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest()
      : seed_(std::random_device{}()), random_(seed_), trace_(__FILE__, __LINE__, fmt::format("seed {}", seed_)) {
    for (const auto& [name, shape] : small_shapes(true)) {
      sources_[prefix(1) + name] = random_source(shape);
    }
    for (const auto& [name, shape] : small_shapes(false)) {
      sources_[prefix(2) + name] = random_source(shape);
    }
  }

  Source random_source(const Shape& shape) {
    Source source{shape, std::vector<float>(static_cast<std::size_t>(count_of(shape)))};
    for (float& value : source.values) {
      value = static_cast<float>(static_cast<int>(random_() % 511) - 255) / 64.0F;
    }
    return source;
  }

  template <class T>
  static void add_as(SafetensorsWriter& writer, const std::string& name, const Source& source) {
    std::vector<T> values;
    for (const float value : source.values) {
      values.push_back(T(value));
    }
    writer.add(name, source.shape, values);
  }

  void write_single(const Sources& sources, int padding = 0) const {
    SafetensorsWriter writer;
    for (const auto& [name, source] : sources) {
      add_as<bfloat16>(writer, name, source);
    }
    write_file(folder_.path() / "model.safetensors", writer.bytes(padding));
  }

  [[nodiscard]] LayerWeights load(const ModelConfig& config, std::int64_t layer = 1, std::int64_t rank = 0,
                                  DType compute = DType::float32) const {
    return load_layer_weights(folder_.path(), config, layer, rank, compute);
  }

  // Rows [r0, r1) and columns [c0, c1) of a source, exactly.
  void expect_part(const Tensor& actual, DType dtype, const std::string& name, std::int64_t r0, std::int64_t r1,
                   std::int64_t c0, std::int64_t c1) const {
    SCOPED_TRACE(name);
    const Source& source = sources_.at(name);
    const std::int64_t columns = source.shape.back();
    ASSERT_EQ(actual.dtype(), dtype);
    ASSERT_EQ(actual.rank(), static_cast<int>(source.shape.size()));
    ASSERT_EQ(actual.dim(actual.rank() - 1), c1 - c0);
    ASSERT_EQ(actual.size_bytes(), (r1 - r0) * (c1 - c0) * size_of(dtype));
    std::int64_t i = 0;
    for (std::int64_t r = r0; r < r1; ++r) {
      for (std::int64_t c = c0; c < c1; ++c, ++i) {
        const float value = dtype == DType::float32 ? reinterpret_cast<const float*>(actual.data())[i]
                                                    : float(reinterpret_cast<const bfloat16*>(actual.data())[i]);
        ASSERT_EQ(value, source.values[static_cast<std::size_t>(r * columns + c)]) << "row " << r << ", column " << c;
      }
    }
  }
  void expect_all(const Tensor& actual, DType dtype, const std::string& name) const {
    const Shape& shape = sources_.at(name).shape;
    expect_part(actual, dtype, name, 0, shape.size() == 1 ? 1 : shape[0], 0, shape.back());
  }

  // What every rank has whole.
  void expect_shared_weights(const LayerWeights& weights, DType compute) const {
    const std::string p = prefix(1);
    expect_all(weights.q_a_proj, compute, p + "q_a_proj.weight");
    expect_all(weights.q_a_norm, DType::float32, p + "q_a_layernorm.weight");
    expect_all(weights.kv_a_proj_with_mqa, compute, p + "kv_a_proj_with_mqa.weight");
    expect_all(weights.kv_a_norm, DType::float32, p + "kv_a_layernorm.weight");
    EXPECT_TRUE(weights.q_proj.empty());
    ASSERT_TRUE(weights.indexer);
    expect_all(weights.indexer->wq_b, compute, p + "indexer.wq_b.weight");
    expect_all(weights.indexer->wk, compute, p + "indexer.wk.weight");
    expect_all(weights.indexer->k_norm_weight, DType::float32, p + "indexer.k_norm.weight");
    expect_all(weights.indexer->k_norm_bias, DType::float32, p + "indexer.k_norm.bias");
    expect_all(weights.indexer->weights_proj, compute, p + "indexer.weights_proj.weight");
    expect_all(weights.indexer->offset_bias, DType::float32, p + "indexer.index_kpool_compress_ape");
    expect_all(weights.indexer->gate, compute, p + "indexer.index_kpool_compress_gate");
  }

  ::testing::AssertionResult refuses(const ModelConfig& config, const std::string& message,
                                     std::int64_t layer = 1) const {
    return throws_error([&] { (void)load(config, layer); }, message);
  }

  std::uint64_t seed_;
  std::mt19937_64 random_;
  ::testing::ScopedTrace trace_;
  TemporaryFolder folder_;
  Sources sources_;
};

TEST_F(CheckpointTest, GivesEachRankItsHeads) {
  write_single(sources_, 1);  // at odd addresses
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    for (const std::int64_t tp : {1, 2, 3, 6}) {
      const ModelConfig config = small_config().shard(tp);
      const std::int64_t heads = 6 / tp;
      for (std::int64_t rank = 0; rank < tp; ++rank) {
        SCOPED_TRACE(fmt::format("rank {} of {}", rank, tp));
        const LayerWeights weights = load(config, 1, rank, compute);
        const std::int64_t begin = rank * heads;
        const std::int64_t end = begin + heads;
        expect_shared_weights(weights, compute);
        expect_part(weights.q_b_proj, compute, prefix(1) + "q_b_proj.weight", begin * 5, end * 5, 0, 10);
        expect_part(weights.kv_b_proj, compute, prefix(1) + "kv_b_proj.weight", begin * 12, end * 12, 0, 24);
        expect_part(weights.o_proj, compute, prefix(1) + "o_proj.weight", 0, 40, begin * 7, end * 7);
        EXPECT_TRUE(weights.sink.empty());
      }
    }
  }
}

TEST_F(CheckpointTest, ReadsEveryStoredType) {
  const std::function<void(SafetensorsWriter&, const std::string&, const Source&)> writers[] = {
      add_as<float>, add_as<bfloat16>, [](SafetensorsWriter& writer, const std::string& name, const Source& source) {
        // Multiples of 1/64 up to 4 are normal or zero in binary16.
        std::vector<std::uint16_t> halves;
        for (const float value : source.values) {
          const auto u = std::bit_cast<std::uint32_t>(value);
          const std::uint32_t magnitude = value == 0.0F ? 0 : ((u >> 13) & 0x3ffff) - (112U << 10);
          halves.push_back(static_cast<std::uint16_t>(((u >> 16) & 0x8000U) | magnitude));
        }
        writer.add_bytes(name, "F16", source.shape, {reinterpret_cast<const char*>(halves.data()), halves.size() * 2});
      }};
  for (const auto& write : writers) {
    SafetensorsWriter writer;
    for (const auto& [name, source] : sources_) {
      write(writer, name, source);
    }
    write_file(folder_.path() / "model.safetensors", writer.bytes());
    for (const DType compute : {DType::float32, DType::bfloat16}) {
      const LayerWeights weights = load(small_config(), 1, 0, compute);
      expect_shared_weights(weights, compute);
      expect_all(weights.o_proj, compute, prefix(1) + "o_proj.weight");
    }
  }
}

TEST_F(CheckpointTest, RoundsOnceToNearestEven) {
  // Between the bfloat16 neighbours 1 and 1 + 2^-7: the tie goes to the even one, a bit more goes up.
  Source& source = sources_[prefix(1) + "q_a_proj.weight"];
  source.values[0] = 1.0F + 0x1p-8F;
  source.values[1] = 1.0F + 0x1p-8F + 0x1p-20F;
  source.values[2] = 1.0F + 3 * 0x1p-8F;
  SafetensorsWriter writer;
  for (const auto& [name, s] : sources_) {
    add_as<float>(writer, name, s);
  }
  write_file(folder_.path() / "model.safetensors", writer.bytes());
  const LayerWeights weights = load(small_config(), 1, 0, DType::bfloat16);
  const auto rounded = weights.q_a_proj.view_as<bfloat16>();
  EXPECT_EQ(float(rounded(0, 0)), 1.0F);
  EXPECT_EQ(float(rounded(0, 1)), 1.0F + 0x1p-7F);
  EXPECT_EQ(float(rounded(0, 2)), 1.0F + 0x1p-6F);
  EXPECT_EQ(load(small_config()).q_a_proj.view_as<float>()(0, 1), source.values[1]);
}

TEST_F(CheckpointTest, ASharingLayerHasNoIndexer) {
  write_single(sources_);
  const LayerWeights weights = load(small_config(), 2);
  EXPECT_FALSE(weights.indexer);
  expect_all(weights.kv_b_proj, DType::float32, prefix(2) + "kv_b_proj.weight");
}

TEST_F(CheckpointTest, WithoutARankThereIsOneQueryProjection) {
  ModelConfig config = small_config();
  config.q_lora_rank.reset();
  config.indexer.reset();
  config.layer_kinds.assign(3, LayerKind::full_attention);
  config.shares_selection.assign(3, false);
  sources_[prefix(1) + "q_proj.weight"] = random_source({30, 40});
  write_single(sources_);
  const LayerWeights weights = load(config.shard(3), 1, 2);
  EXPECT_TRUE(weights.q_a_proj.empty());
  EXPECT_TRUE(weights.q_a_norm.empty());
  EXPECT_TRUE(weights.q_b_proj.empty());
  EXPECT_FALSE(weights.indexer);
  expect_part(weights.q_proj, DType::float32, prefix(1) + "q_proj.weight", 20, 30, 0, 40);
  expect_part(weights.o_proj, DType::float32, prefix(1) + "o_proj.weight", 0, 40, 28, 42);
}

TEST_F(CheckpointTest, ReadsSinks) {
  sources_[prefix(1) + "sinks"] = random_source({6});
  write_single(sources_);
  expect_part(load(small_config().shard(2), 1, 1).sink, DType::float32, prefix(1) + "sinks", 0, 1, 3, 6);
  sources_[prefix(1) + "sinks"] = random_source({5});
  write_single(sources_);
  EXPECT_TRUE(refuses(small_config(), prefix(1) + "sinks: expected shape [6], got [5]"));
}

TEST_F(CheckpointTest, ShardsGiveWhatOneFileGives) {
  write_single(sources_);
  const LayerWeights single = load(small_config().shard(2), 1, 1);
  std::filesystem::remove(folder_.path() / "model.safetensors");

  SafetensorsWriter shards[3];
  std::string weight_map;
  std::size_t i = 0;
  for (const auto& [name, source] : sources_) {
    const std::size_t shard = i++ % 3;
    add_as<bfloat16>(shards[shard], name, source);
    weight_map += fmt::format(R"({}"{}":"model-{}.safetensors")", weight_map.empty() ? "" : ",", name, shard);
  }
  for (std::size_t shard = 0; shard < 3; ++shard) {
    write_file(folder_.path() / fmt::format("model-{}.safetensors", shard), shards[shard].bytes());
  }
  weight_map += R"(,"model.language_model.layers.7.self_attn.o_proj.weight":"not-there.safetensors")";
  write_file(folder_.path() / "model.safetensors.index.json", "{\"weight_map\":{" + weight_map + "}}");

  const LayerWeights sharded = load(small_config().shard(2), 1, 1);
  expect_shared_weights(sharded, DType::float32);
  for (const auto member : {&LayerWeights::q_b_proj, &LayerWeights::kv_b_proj, &LayerWeights::o_proj}) {
    const Tensor& a = single.*member;
    const Tensor& b = sharded.*member;
    ASSERT_EQ(a.size_bytes(), b.size_bytes());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size_bytes())), 0);
  }
  std::filesystem::remove(folder_.path() / "model-1.safetensors");
  EXPECT_TRUE(refuses(small_config(), "model-1.safetensors: expected a file, got nothing"));
}

TEST_F(CheckpointTest, NamesEachMissingTensor) {
  for (const auto& [name, shape] : small_shapes(true)) {
    Sources sources = sources_;
    sources.erase(prefix(1) + name);
    write_single(sources);
    EXPECT_TRUE(refuses(small_config(), prefix(1) + name + ": expected a tensor of"));
  }
}

TEST_F(CheckpointTest, NamesEachWrongShape) {
  for (const auto& [name, shape] : small_shapes(true)) {
    std::vector<Shape> wrong = {{}, {count_of(shape) + 1}, {1, 1, count_of(shape)}};
    for (std::size_t i = 0; i < shape.size(); ++i) {
      wrong.push_back(shape);
      wrong.back()[i] += 1;
      wrong.push_back(shape);
      wrong.back()[i] = 0;
    }
    if (shape.size() == 2) {
      wrong.push_back({shape[1], shape[0]});
    }
    for (const Shape& other : wrong) {
      Sources sources = sources_;
      sources[prefix(1) + name] = random_source(other);
      write_single(sources);
      EXPECT_TRUE(refuses(small_config(), fmt::format("{}{}: expected shape {}, got {}", prefix(1), name,
                                                      io::shape_to_string(shape), io::shape_to_string(other))));
    }
  }
}

TEST_F(CheckpointTest, NamesEachWrongType) {
  for (const auto& [name, shape] : small_shapes(true)) {
    const std::string expected =
        shape.size() == 2 ? ": expected F32, BF16, F16 or F8_E4M3, got" : ": expected F32, BF16 or F16, got";
    for (const std::string_view type : {"I32", "F64", "I8", "U8", "F8_E8M0"}) {
      const std::int64_t size = type == "I32" ? 4 : type == "F64" ? 8 : 1;
      SafetensorsWriter writer;
      for (const auto& [other, source] : sources_) {
        if (other == prefix(1) + name) {
          writer.add_bytes(other, type, shape, std::string(static_cast<std::size_t>(count_of(shape) * size), '\0'));
        } else {
          add_as<bfloat16>(writer, other, source);
        }
      }
      write_file(folder_.path() / "model.safetensors", writer.bytes());
      EXPECT_TRUE(refuses(small_config(), prefix(1) + name + expected)) << type;
    }
  }
}

TEST_F(CheckpointTest, RefusesBadArguments) {
  write_single(sources_);
  const ModelConfig config = small_config();
  EXPECT_TRUE(refuses(config, "linear attention", 0));
  for (const std::int64_t layer : {-1, 3}) {
    EXPECT_TRUE(refuses(config, "layer: expected a layer in [0, 3)", layer));
  }
  for (const std::int64_t rank : {-1, 1}) {
    EXPECT_TRUE(throws_error([&] { (void)load(config, 1, rank); }, "rank: expected a rank in [0, 1)"));
  }
  EXPECT_TRUE(throws_error([&] { (void)load(config, 1, 0, DType::float16); }, "compute: expected float32 or bfloat16"));
  EXPECT_TRUE(throws_error([&] { (void)load_layer_weights(folder_.path() / "x", config, 1, 0, DType::float32); },
                           "got neither"));
}

TEST(Recordings, HaveTheWeightsTheirConfigurationsAskFor) {
  const std::filesystem::path data = std::filesystem::path(HEADRACE_TEST_DATA) / "recordings";
  for (const std::string name : {"deepseek_v32", "glm_moe_dsa", "glm_moe_dsa_8heads", "glm5_next"}) {
    SCOPED_TRACE(name);
    const ModelConfig config = load_model_config(data / name);
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
      const LayerWeights weights = load_layer_weights(data / name, config, layer, 0, DType::bfloat16);
      EXPECT_EQ(weights.kv_b_proj.dim(1), config.geometry.kv_lora_rank);
      EXPECT_EQ(weights.indexer.has_value(), layer == 0);
      // The recorder draws norm weights about 1.
      double mean = 0.0;
      const auto norm = weights.kv_a_norm.view_as<float>();
      for (std::int64_t i = 0; i < norm.dim(0); ++i) {
        mean += double(norm(i)) / double(norm.dim(0));
      }
      EXPECT_NEAR(mean, 1.0, 0.05);
    }
  }
  // Weights of another model.
  EXPECT_TRUE(throws_error(
      [&] {
        (void)load_layer_weights(data / "deepseek_v32", load_model_config(data / "glm_moe_dsa"), 0, 0, DType::float32);
      },
      "model.layers.0.self_attn.q_b_proj.weight: expected shape [512, 192], got [384, 192]"));
}

}  // namespace
}  // namespace headrace
