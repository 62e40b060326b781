// SPDX-License-Identifier: Apache-2.0
// What each field of a configuration acts on: a layer's projections in float64, with a pairing and an epsilon of its
// own for everything that has one. (In models several are equal, so that recordings cannot tell them apart.)
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/layer.h"
#include "layer/random.h"
#include "support/random.h"

namespace headrace {
namespace {

using Row = std::vector<double>;

constexpr std::int64_t kTokens = 6;
constexpr double kTolerance = 2e-5;  // float32 results of magnitude 1 or so, after two products

ModelConfig config_with(bool interleave, bool indexer_interleave) {
  ModelConfig config;
  config.model_type = "deepseek_v32";
  config.hidden_size = 48;
  config.num_layers = 1;
  config.max_position_embeddings = 4096;
  config.geometry = {4, 32, 16, 8, 12};
  config.q_lora_rank = 24;
  config.q_a_norm_epsilon = 0.5;
  config.kv_a_norm_epsilon = 0.1;
  config.rope.dim = 8;
  config.rope.interleave = interleave;
  config.softmax_scale = 1.0 / std::sqrt(24.0);
  config.layer_kinds = {LayerKind::sparse_attention};
  config.shares_selection = {false};
  IndexerGeometry& indexer = config.indexer.emplace();
  indexer.num_heads = 3;
  indexer.head_dim = 16;
  indexer.topk = 8;
  indexer.rope_dim = 8;
  indexer.rope_interleave = indexer_interleave;
  indexer.key_norm_epsilon = 2.0;
  return config;
}

/// x times rows [first, first + rows) of a weight.
Row product(const Tensor& weight, std::int64_t first, std::int64_t rows, const Row& x) {
  Row out;
  for (std::int64_t r = first; r < first + rows; ++r) {
    double sum = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      sum += x[i] * static_cast<double>(weight.view_as<float>()(r, static_cast<std::int64_t>(i)));
    }
    out.push_back(sum);
  }
  return out;
}

/// (x - center) / sqrt(variance + epsilon) times the weight.
Row normed(Row x, double center, double epsilon, const Tensor& weight) {
  double squares = 0.0;
  for (const double value : x) {
    squares += (value - center) * (value - center);
  }
  const double root = std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = (x[i] - center) / root * static_cast<double>(weight.view_as<float>()(static_cast<std::int64_t>(i)));
  }
  return x;
}

/// Turns the pairs among x[first, first + dim).
Row rotated(Row x, std::size_t first, std::size_t dim, bool interleave, double theta, std::int32_t position) {
  for (std::size_t i = 0; i < dim / 2; ++i) {
    const std::size_t a = first + (interleave ? 2 * i : i);
    const std::size_t b = first + (interleave ? 2 * i + 1 : i + dim / 2);
    const double angle = position * std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
    const Row pair{x[a], x[b]};
    x[a] = pair[0] * std::cos(angle) - pair[1] * std::sin(angle);
    x[b] = pair[1] * std::cos(angle) + pair[0] * std::sin(angle);
  }
  return x;
}

void expect_near(const float* have, const Row& want, const char* what) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(have[i]), want[i], kTolerance * std::max(1.0, std::fabs(want[i])))
        << what << "[" << i << "]";
  }
}

/// A layer, a step, and what the step's projections have to be.
class Fields : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  Fields() {
    layer::fill_normal(hidden_.view(), seed_, 1000, 1.0, 1);
    projected_ = layer_.project(hidden_.view(), View<const std::int32_t>(positions_, {kTokens}));
  }

  [[nodiscard]] Row hidden(std::int64_t token) const {
    const float* row = hidden_.view_as<float>().at(token);
    return {row, row + config_.hidden_size};
  }
  [[nodiscard]] Row low_rank_query(std::int64_t token) const {
    return normed(product(weights().q_a_proj, 0, *config_.q_lora_rank, hidden(token)), 0.0, config_.q_a_norm_epsilon,
                  weights().q_a_norm);
  }
  [[nodiscard]] Row turned(const Row& x, std::int64_t first, bool interleave, std::int64_t token) const {
    return rotated(x, static_cast<std::size_t>(first), static_cast<std::size_t>(config_.rope.dim), interleave,
                   config_.rope.theta, positions_[token]);
  }
  [[nodiscard]] const LayerWeights& weights() const { return layer_.weights(); }

  std::uint64_t seed_ = test::fresh_seed();
  testing::ScopedTrace trace_{__FILE__, __LINE__, "HEADRACE_TEST_SEED=" + std::to_string(seed_)};
  ModelConfig config_ = config_with(std::get<0>(GetParam()), std::get<1>(GetParam()));
  Layer layer_{config_, 0, random_layer_weights(config_, 0, DType::float32, seed_), DType::float32, 1};
  Tensor hidden_{DType::float32, {kTokens, config_.hidden_size}};
  const std::int32_t positions_[kTokens] = {3, 0, 4000, 17, 1, 2};
  Projected projected_;
};

TEST_P(Fields, OfTheLatentAndItsRopeKey) {
  const Geometry& g = config_.geometry;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const Tensor& weight = weights().kv_a_proj_with_mqa;
    expect_near(
        projected_.latent.view_as<float>().at(t),
        normed(product(weight, 0, g.kv_lora_rank, hidden(t)), 0.0, config_.kv_a_norm_epsilon, weights().kv_a_norm),
        "latent");
    expect_near(projected_.rope_key.view_as<float>().at(t),
                turned(product(weight, g.kv_lora_rank, g.qk_rope_head_dim, hidden(t)), 0, config_.rope.interleave, t),
                "rope key");
  }
}

TEST_P(Fields, OfTheQuery) {
  const Geometry& g = config_.geometry;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t h = 0; h < g.num_heads; ++h) {
      const Row plain = product(weights().q_b_proj, h * g.qk_head_dim(), g.qk_head_dim(), low_rank_query(t));
      expect_near(projected_.q.view_as<float>().at(t, h), turned(plain, g.qk_nope_head_dim, config_.rope.interleave, t),
                  "query");
    }
  }
}

TEST_P(Fields, OfTheIndexersKey) {
  const IndexerGeometry& indexer = *config_.indexer;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const Row raw = product(weights().indexer->wk, 0, indexer.head_dim, hidden(t));
    double mean = 0.0;
    for (const double value : raw) {
      mean += value / static_cast<double>(raw.size());
    }
    Row key = normed(raw, mean, indexer.key_norm_epsilon, weights().indexer->k_norm_weight);
    for (std::size_t i = 0; i < key.size(); ++i) {
      key[i] += weights().indexer->k_norm_bias.view_as<float>()(static_cast<std::int64_t>(i));
    }
    expect_near(projected_.index_key.view_as<float>().at(t), turned(key, 0, indexer.rope_interleave, t), "index key");
  }
}

TEST_P(Fields, OfTheIndexersQuery) {
  const IndexerGeometry& indexer = *config_.indexer;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    Row weight = product(weights().indexer->weights_proj, 0, indexer.num_heads, hidden(t));
    for (double& value : weight) {
      value /= std::sqrt(static_cast<double>(indexer.num_heads * indexer.head_dim));
    }
    expect_near(projected_.index_weight.view_as<float>().at(t), weight, "index weight");
    for (std::int64_t h = 0; h < indexer.num_heads; ++h) {
      const Row plain = product(weights().indexer->wq_b, h * indexer.head_dim, indexer.head_dim, low_rank_query(t));
      expect_near(projected_.index_query.view_as<float>().at(t, h), turned(plain, 0, indexer.rope_interleave, t),
                  "index query");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Pairings, Fields, testing::Combine(testing::Bool(), testing::Bool()));

}  // namespace
}  // namespace headrace
