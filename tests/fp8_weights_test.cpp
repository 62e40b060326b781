// SPDX-License-Identifier: Apache-2.0
// Weights of e4m3 with a scale for each block of 128 x 128.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <type_traits>

#include "headrace/layer.h"
#include "io/float_rows.h"
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

// Bits of e4m3 as OFP8 defines them: sign, 4 exponent bits of bias 7, 3 mantissa bits.
double e4m3_value(std::uint8_t bits) {
  const int exponent = (bits >> 3) & 15;
  const int mantissa = bits & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

struct Quantised {
  std::int64_t rows;
  std::int64_t columns;
  std::vector<std::uint8_t> bits;
  std::vector<float> scales;  // [ceil(rows / 128), ceil(columns / 128)]

  [[nodiscard]] std::int64_t block_columns() const { return (columns + 127) / 128; }
  [[nodiscard]] std::int64_t block_rows() const { return (rows + 127) / 128; }
  [[nodiscard]] double value(std::int64_t r, std::int64_t c) const {
    return e4m3_value(bits[static_cast<std::size_t>(r * columns + c)]) *
           double(scales[static_cast<std::size_t>(r / 128 * block_columns() + c / 128)]);
  }
};

class Fp8Test : public ::testing::Test {
 protected:
  Fp8Test()
      : seed_(std::random_device{}()), random_(seed_), trace_(__FILE__, __LINE__, fmt::format("seed {}", seed_)) {}

  Quantised quantised(std::int64_t rows, std::int64_t columns, bool powers_of_two) {
    Quantised q{rows, columns, {}, {}};
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const auto bits = static_cast<std::uint8_t>(random_());
      q.bits.push_back((bits & 0x7f) == 0x7f ? std::uint8_t{0x7e} : bits);
    }
    for (std::int64_t i = 0; i < q.block_rows() * q.block_columns(); ++i) {
      const float exponent = std::ldexp(1.0F, static_cast<int>(random_() % 16) - 12);
      q.scales.push_back(powers_of_two ? exponent : exponent * (1.0F + static_cast<float>(random_() % 1000) / 1000.0F));
    }
    return q;
  }

  static void add(SafetensorsWriter& writer, const std::string& name, const Quantised& q, bool ue8m0) {
    writer.add_bytes(name, "F8_E4M3", {q.rows, q.columns},
                     {reinterpret_cast<const char*>(q.bits.data()), q.bits.size()});
    if (!ue8m0) {
      writer.add(name + "_scale_inv", {q.block_rows(), q.block_columns()}, q.scales);
      return;
    }
    std::string exponents;
    for (const float scale : q.scales) {
      exponents += static_cast<char>(127 + std::ilogb(scale));
    }
    writer.add_bytes(name + "_scale_inv", "F8_E8M0", {q.block_rows(), q.block_columns()}, exponents);
  }

  // The float32 product and its one rounding to bfloat16, both nearest even, against double arithmetic.
  static void expect_value(const Tensor& tensor, std::int64_t r, std::int64_t c, double expected) {
    const auto rounded = static_cast<float>(expected);
    if (tensor.dtype() == DType::float32) {
      ASSERT_EQ(tensor.view_as<float>()(r, c), rounded) << r << ", " << c;
    } else {
      ASSERT_EQ(float(tensor.view_as<bfloat16>()(r, c)), float(bfloat16(rounded))) << r << ", " << c;
    }
  }

  std::uint64_t seed_;
  std::mt19937_64 random_;
  ::testing::ScopedTrace trace_;
  TemporaryFolder folder_;
};

ModelConfig fp8_config() {
  ModelConfig config;
  config.model_type = "deepseek_v3";
  config.hidden_size = 200;  // blocks of 128 and 72
  config.num_layers = 1;
  config.geometry = {3, 130, 50, 10, 60};  // heads do not begin at blocks
  config.layer_kinds = {LayerKind::full_attention};
  config.shares_selection = {false};
  config.weight_prefix = "model.layers.";
  return config;
}

TEST_F(Fp8Test, DequantisesEveryRanksPart) {
  const std::string p = "model.layers.0.self_attn.";
  for (const bool ue8m0 : {false, true}) {
    const std::map<std::string, Quantised> sources = {{"q_proj", quantised(180, 200, ue8m0)},
                                                      {"kv_a_proj_with_mqa", quantised(140, 200, ue8m0)},
                                                      {"kv_b_proj", quantised(330, 130, ue8m0)},
                                                      {"o_proj", quantised(200, 180, ue8m0)}};
    SafetensorsWriter writer;
    writer.add(p + "kv_a_layernorm.weight", {130}, std::vector<bfloat16>(130, bfloat16(1.0F)));
    for (const auto& [name, source] : sources) {
      add(writer, p + name + ".weight", source, ue8m0);
    }
    write_file(folder_.path() / "model.safetensors", writer.bytes());
    const ModelConfig config = fp8_config().shard(3);
    for (const DType compute : {DType::float32, DType::bfloat16}) {
      for (std::int64_t rank = 0; rank < 3; ++rank) {
        const LayerWeights weights = load_layer_weights(folder_.path(), config, 0, rank, compute);
        const auto expect_part = [&](const Tensor& tensor, const std::string& name, std::int64_t row,
                                     std::int64_t column) {
          SCOPED_TRACE(fmt::format("{} of rank {}, {}", name, rank, name_of(compute)));
          ASSERT_EQ(tensor.dtype(), compute);
          for (std::int64_t r = 0; r < tensor.dim(0); ++r) {
            for (std::int64_t c = 0; c < tensor.dim(1); ++c) {
              expect_value(tensor, r, c, sources.at(name).value(row + r, column + c));
            }
          }
        };
        expect_part(weights.q_proj, "q_proj", rank * 60, 0);
        expect_part(weights.kv_a_proj_with_mqa, "kv_a_proj_with_mqa", 0, 0);
        expect_part(weights.kv_b_proj, "kv_b_proj", rank * 110, 0);
        expect_part(weights.o_proj, "o_proj", 0, rank * 60);
      }
    }
  }
}

TEST_F(Fp8Test, DecodesEveryByte) {
  SafetensorsWriter writer;
  std::string bytes;
  for (int i = 0; i < 256; ++i) {
    bytes += static_cast<char>(i);
  }
  writer.add_bytes("w", "F8_E4M3", {2, 128}, bytes);
  writer.add<float>("w_scale_inv", {1, 1}, {0.5F});
  write_file(folder_.path() / "w", writer.bytes());
  const io::Safetensors file(folder_.path() / "w");
  const io::FloatRows rows(file.tensor("w"), file.tensor("w_scale_inv"));
  for (int i = 0; i < 256; ++i) {
    std::vector<float> value(1);
    rows.read(i / 128, i % 128, value);
    if ((i & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value[0])) << i;
    } else {
      EXPECT_EQ(value[0], static_cast<float>(e4m3_value(static_cast<std::uint8_t>(i)) * 0.5)) << i;
    }
  }
}

TEST_F(Fp8Test, RefusesBadScales) {
  const auto open = [this](const SafetensorsWriter& writer) {
    write_file(folder_.path() / "w", writer.bytes());
    const io::Safetensors file(folder_.path() / "w");
    std::optional<io::StoredTensor> scales;
    if (file.contains("w_scale_inv")) {
      scales = file.tensor("w_scale_inv");
    }
    (void)io::FloatRows(file.tensor("w"), scales);
  };
  const auto with_weight = [] {
    SafetensorsWriter writer;
    writer.add_bytes("w", "F8_E4M3", {129, 128}, std::string(129 * 128, '\0'));
    return writer;
  };
  EXPECT_TRUE(throws_error([&] { open(with_weight()); }, "w_scale_inv: expected the block scales"));
  for (const float bad :
       {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    SafetensorsWriter writer = with_weight();
    writer.add<float>("w_scale_inv", {2, 1}, {1.0F, bad});
    EXPECT_TRUE(throws_error([&] { open(writer); }, "w_scale_inv[1, 0]: expected a scale that is finite and > 0"))
        << bad;
  }
  SafetensorsWriter nan = with_weight();
  nan.add_bytes("w_scale_inv", "F8_E8M0", {2, 1}, "\x7f\xff");
  EXPECT_TRUE(throws_error([&] { open(nan); }, "w_scale_inv[1, 0]: expected a scale that is finite and > 0, got nan"));
  for (const Shape& shape : {Shape{1, 1}, Shape{2, 2}, Shape{1, 2}, Shape{2}, Shape{129, 1}}) {
    SafetensorsWriter writer = with_weight();
    writer.add("w_scale_inv", shape,
               std::vector<float>(static_cast<std::size_t>(shape[0] * (shape.size() == 2 ? shape[1] : 1)), 1.0F));
    EXPECT_TRUE(throws_error([&] { open(writer); },
                             "w_scale_inv: expected a scale for each block of 128 x 128, shape [2, 1], got shape ["));
  }
  SafetensorsWriter type = with_weight();
  type.add<std::int32_t>("w_scale_inv", {2, 1}, {1, 1});
  EXPECT_TRUE(
      throws_error([&] { open(type); }, "w_scale_inv: expected scales of F32, BF16, F16 or F8_E8M0, got int32"));
  SafetensorsWriter vector;
  vector.add_bytes("w", "F8_E4M3", {2}, "ab");
  EXPECT_TRUE(throws_error([&] { open(vector); }, "w: expected a vector of F32, BF16 or F16"));
}

// ---- spellings: names and dtypes of the scales, at 300 x 520, where the last blocks of both axes are ragged
// ------------

constexpr std::int64_t kRows = 300;
constexpr std::int64_t kColumns = 520;

// One projection of that shape, [hidden, heads * v], in a checkpoint whose other weights are bfloat16.
ModelConfig ragged_config() {
  ModelConfig config = fp8_config();
  config.hidden_size = kRows;
  config.geometry = {2, 130, 50, 10, kColumns / 2};
  return config;
}

class SpellingTest : public Fp8Test {
 protected:
  // Scales that each of the dtypes holds.
  SpellingTest() : o_proj_(quantised(kRows, kColumns, true)) { EXPECT_EQ(o_proj_.scales.size(), 15U); }

  void add_others(SafetensorsWriter& writer) const {
    const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
      writer.add(prefix_ + name, {rows, columns},
                 std::vector<bfloat16>(static_cast<std::size_t>(rows * columns), bfloat16(0.5F)));
    };
    add("q_proj.weight", 2 * 60, kRows);
    add("kv_a_proj_with_mqa.weight", 140, kRows);
    add("kv_b_proj.weight", 2 * (50 + kColumns / 2), 130);
    writer.add(prefix_ + "kv_a_layernorm.weight", {130}, std::vector<bfloat16>(130, bfloat16(1.0F)));
    writer.add_bytes(name_, "F8_E4M3", {kRows, kColumns},
                     {reinterpret_cast<const char*>(o_proj_.bits.data()), o_proj_.bits.size()});
  }

  template <class T>
  [[nodiscard]] std::vector<T> scales() const {
    std::vector<T> result;
    for (const float scale : o_proj_.scales) {
      if constexpr (std::is_same_v<T, float16>) {  // powers of two, which these hold as bare exponents
        result.push_back(T{static_cast<std::uint16_t>((15 + std::ilogb(scale)) << 10)});
      } else if constexpr (std::is_same_v<T, float8_e8m0>) {
        result.push_back(T{static_cast<std::uint8_t>(127 + std::ilogb(scale))});
      } else {
        result.push_back(static_cast<T>(scale));
      }
      EXPECT_EQ(static_cast<float>(result.back()), scale);
    }
    return result;
  }

  [[nodiscard]] LayerWeights load(const SafetensorsWriter& writer) const {
    write_file(folder_.path() / "model.safetensors", writer.bytes());
    return load_layer_weights(folder_.path(), ragged_config(), 0, 0, DType::float32);
  }

  void expect_loaded(const SafetensorsWriter& writer) const {
    const LayerWeights weights = load(writer);
    ASSERT_EQ(weights.o_proj.dim(0), kRows);
    ASSERT_EQ(weights.o_proj.dim(1), kColumns);
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < kColumns; ++c) {
        expect_value(weights.o_proj, r, c, o_proj_.value(r, c));
      }
    }
  }

  std::string prefix_ = "model.layers.0.self_attn.";
  std::string name_ = prefix_ + "o_proj.weight";
  Quantised o_proj_;
  Shape blocks_{3, 5};
};

TEST_F(SpellingTest, EveryNameAndDtype) {
  for (const char* ending : {"_scale_inv", "_scale"}) {
    const auto expect_dtype_of = [&](auto element) {
      SCOPED_TRACE(fmt::format("{} {}", ending, name_of(DTypeOf<decltype(element)>::value)));
      SafetensorsWriter writer;
      add_others(writer);
      writer.add(name_ + ending, blocks_, scales<decltype(element)>());
      expect_loaded(writer);
    };
    expect_dtype_of(float{});
    expect_dtype_of(bfloat16{});
    expect_dtype_of(float16{});
    expect_dtype_of(float8_e8m0{});
  }
}

TEST_F(SpellingTest, BothNamesOfTheSameScales) {
  SafetensorsWriter writer;
  add_others(writer);
  writer.add(name_ + "_scale_inv", blocks_, scales<float>());
  writer.add(name_ + "_scale", blocks_, scales<bfloat16>());
  expect_loaded(writer);
}

TEST_F(SpellingTest, BothNamesThatContradictAreRefused) {
  SafetensorsWriter writer;
  add_others(writer);
  writer.add(name_ + "_scale_inv", blocks_, scales<float>());
  std::vector<float> others = o_proj_.scales;
  others.back() *= 2.0F;
  writer.add(name_ + "_scale", blocks_, others);
  EXPECT_TRUE(throws_error([&] { (void)load(writer); },
                           name_ + "_scale: expected the scales of " + name_ + "_scale_inv, or only one of the two"));
}

TEST_F(SpellingTest, ScalesOfOtherGranularityAreRefused) {
  for (const char* ending : {"_scale_inv", "_scale"}) {
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{1, 1}, Shape{kRows, 1}, Shape{kRows}, Shape{5, 3}}) {
      std::int64_t size = 1;
      for (const std::int64_t n : shape) {
        size *= n;
      }
      SafetensorsWriter writer;
      add_others(writer);
      writer.add(name_ + ending, shape, std::vector<float>(static_cast<std::size_t>(size), 1.0F));
      EXPECT_TRUE(throws_error([&] { (void)load(writer); },
                               name_ + ending +
                                   ": expected a scale for each block of 128 x 128, shape [3, 5], got shape " +
                                   io::shape_to_string(shape)));
    }
  }
}

TEST_F(SpellingTest, NoScalesUnderEitherNameAreMissed) {
  SafetensorsWriter writer;
  add_others(writer);
  EXPECT_TRUE(throws_error([&] { (void)load(writer); }, name_ + "_scale_inv: expected the block scales"));
}

}  // namespace
}  // namespace headrace
