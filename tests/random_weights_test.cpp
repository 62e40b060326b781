// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "headrace/error.h"
#include "headrace/layer.h"
#include "layer/random.h"
#include "layer/weight_specs.h"
#include "support/random.h"

namespace headrace {
namespace {

/// A k-pool model has every kind of weight; the one without an indexer has q_proj.
std::vector<ModelConfig> all_configs() {
  ModelConfig kpool;
  kpool.model_type = "glm5_next";
  kpool.hidden_size = 48;
  kpool.num_layers = 2;
  kpool.geometry = {4, 32, 16, 0, 12};
  kpool.q_lora_rank = 24;
  kpool.softmax_scale = 0.25;
  kpool.layer_kinds = {LayerKind::sparse_attention, LayerKind::sparse_attention};
  kpool.shares_selection = {false, true};
  IndexerGeometry indexer;
  indexer.num_heads = 3;
  indexer.head_dim = 16;
  indexer.topk = 8;
  indexer.kpool = true;
  indexer.pool = 4;
  indexer.tail = true;
  kpool.indexer = indexer;
  ModelConfig full = kpool;
  full.q_lora_rank.reset();
  full.layer_kinds = {LayerKind::full_attention, LayerKind::full_attention};
  full.shares_selection = {false, false};
  full.indexer.reset();
  return {kpool, full};
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.size_bytes() == b.size_bytes() &&
         std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size_bytes())) == 0;
}

// The literals come from another implementation of SplitMix64, in Python's integers.
TEST(Random, IsTheSameEverywhere) {
  EXPECT_EQ(layer::random_bits(1, 2, 0), 0xd2f6d0470be1a7b1U);
  EXPECT_EQ(layer::random_bits(1, 2, 1), 0xe5ea3dccf500a9afU);
  EXPECT_EQ(layer::random_bits(~0ULL, ~0ULL, ~0ULL), 0xe34ddffaf69ae84bU);

  std::vector<float> x(70001);
  layer::fill_normal(View<float>(x.data(), {70001}), 42, 7, std::sqrt(8.0 / 12.0) * 65536.0, 2);
  EXPECT_EQ(x[0], -36353.0F);
  EXPECT_EQ(x[1], 83116.0F);
  EXPECT_EQ(x[70000], 27589.0F);
}

TEST(Random, DoesNotDependOnThreads) {
  const std::uint64_t seed = test::fresh_seed();
  std::vector<float> one(200003);
  std::vector<float> three(one.size());
  layer::fill_normal(View<float>(one.data(), {200003}), seed, 5, 0.3, 1);
  layer::fill_normal(View<float>(three.data(), {200003}), seed, 5, 0.3, 3);
  EXPECT_EQ(one, three) << "seed " << seed;
}

TEST(Random, IsNearlyNormal) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr std::int64_t kCount = 1 << 20;
  std::vector<float> x(kCount);
  layer::fill_normal(View<float>(x.data(), {kCount}), seed, 0, 0.5, 2);
  double mean = 0.0;
  double variance = 0.0;
  double product = 0.0;  // of neighbours
  std::int64_t beyond = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    mean += x[i];
    variance += static_cast<double>(x[i]) * x[i];
    product += i > 0 ? static_cast<double>(x[i]) * x[i - 1] : 0.0;
    beyond += std::abs(x[i]) > 1.0F ? 1 : 0;  // two standard deviations
  }
  // Six standard deviations of each estimate.
  EXPECT_NEAR(mean / kCount, 0.0, 0.003);
  EXPECT_NEAR(variance / kCount, 0.25, 0.0021);
  EXPECT_NEAR(product / kCount, 0.0, 0.0015);
  EXPECT_NEAR(static_cast<double>(beyond) / kCount, 0.0455, 0.003);
}

TEST(Random, RefusesGaps) {
  std::vector<float> x(12);
  EXPECT_THROW(layer::fill_normal(View<float>(x.data(), 2, {3, 2}, {4, 1}), 0, 0, 1.0, 1), Error);
  EXPECT_THROW(layer::fill_normal(View<float>(x.data(), {3, 4}).transposed(), 0, 0, 1.0, 1), Error);
  EXPECT_THROW(layer::fill_normal(View<std::int32_t>(nullptr, {0}), 0, 0, 1.0, 1), Error);
}

TEST(RandomWeights, HaveTheShapesAndSpreadsOfTheLayer) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (const ModelConfig& config : all_configs()) {
    for (const DType compute : {DType::float32, DType::bfloat16}) {
      const LayerWeights weights = random_layer_weights(config, 0, compute, seed);
      EXPECT_NO_THROW(layer::check_weights(config, 0, compute, weights));
    }
    const LayerWeights weights = random_layer_weights(config, 0, DType::float32, seed);
    const auto columns = static_cast<double>(weights.kv_b_proj.dim(1));
    double square = 0.0;
    const float* values = weights.kv_b_proj.view_as<float>().data();
    const std::int64_t count = weights.kv_b_proj.dim(0) * weights.kv_b_proj.dim(1);
    for (std::int64_t i = 0; i < count; ++i) {
      square += static_cast<double>(values[i]) * values[i];
    }
    EXPECT_NEAR(square / static_cast<double>(count) * columns, 1.0, 0.15);
    for (std::int64_t i = 0; i < weights.kv_a_norm.dim(0); ++i) {
      EXPECT_NEAR(weights.kv_a_norm.view_as<float>()(i), 1.0F, 0.5F);
    }
  }
}

TEST(RandomWeights, DependOnSeedAndLayerAlone) {
  const ModelConfig config = all_configs().back();
  const LayerWeights a = random_layer_weights(config, 0, DType::bfloat16, 1);
  EXPECT_TRUE(same_bits(a.o_proj, random_layer_weights(config, 0, DType::bfloat16, 1).o_proj));
  EXPECT_FALSE(same_bits(a.o_proj, random_layer_weights(config, 0, DType::bfloat16, 2).o_proj));
  EXPECT_FALSE(same_bits(a.o_proj, random_layer_weights(config, 1, DType::bfloat16, 1).o_proj));
}

}  // namespace
}  // namespace headrace
