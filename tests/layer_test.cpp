// SPDX-License-Identifier: Apache-2.0
#include "headrace/layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "headrace/error.h"
#include "layer/random.h"
#include "layer/weight_specs.h"
#include "support/layer_run.h"
#include "support/random.h"

namespace headrace {
namespace {

double worst_row(const Tensor& actual, const Tensor& expected) {
  return test::relative_error(actual.view_as<float>(), expected.view_as<float>()).worst_row;
}

/// One sparse layer that scores and one that shares its selection; 4 heads, a selection of 8 keys.
ModelConfig lightning_config() {
  ModelConfig config;
  config.model_type = "deepseek_v32";
  config.hidden_size = 48;
  config.num_layers = 2;
  config.max_position_embeddings = 4096;
  config.geometry = {4, 32, 16, 8, 12};
  config.q_lora_rank = 24;
  config.rope.dim = 8;
  config.softmax_scale = 1.0 / std::sqrt(24.0);
  config.layer_kinds = {LayerKind::sparse_attention, LayerKind::sparse_attention};
  config.shares_selection = {false, true};
  IndexerGeometry indexer;
  indexer.num_heads = 3;
  indexer.head_dim = 16;
  indexer.topk = 8;
  indexer.rope_dim = 8;
  config.indexer = indexer;
  return config;
}

ModelConfig kpool_config() {
  ModelConfig config = lightning_config();
  config.geometry.qk_rope_head_dim = 0;
  config.rope.dim = 0;
  config.indexer->rope_dim = 0;
  config.indexer->kpool = true;
  config.indexer->pool = 4;
  config.indexer->tail = true;
  return config;
}

/// No indexer, and one q_proj.
ModelConfig full_attention_config() {
  ModelConfig config = lightning_config();
  config.model_type = "deepseek_v2";
  config.q_lora_rank.reset();
  config.layer_kinds = {LayerKind::full_attention, LayerKind::full_attention};
  config.shares_selection = {false, false};
  config.indexer.reset();
  return config;
}

std::vector<ModelConfig> all_configs() { return {lightning_config(), kpool_config(), full_attention_config()}; }

Layer random_layer(const ModelConfig& config, std::uint64_t seed, DType compute = DType::float32) {
  return Layer(config, 0, random_layer_weights(config, 0, compute, seed), compute, 1);
}

Tensor random_hidden(const ModelConfig& config, std::int64_t tokens, std::uint64_t seed,
                     DType compute = DType::float32) {
  Tensor hidden(compute, {tokens, config.hidden_size});
  layer::fill_normal(hidden.view(), seed, 1000, 1.0, 1);
  return hidden;
}

std::vector<std::int32_t> consecutive(std::int64_t n, std::int32_t first = 0) {
  std::vector<std::int32_t> result(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = first + static_cast<std::int32_t>(i);
  }
  return result;
}

View<const std::int32_t> view_of(const std::vector<std::int32_t>& values) {
  return View<const std::int32_t>(values.data(), {static_cast<std::int64_t>(values.size())});
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.size_bytes() == b.size_bytes() &&
         (a.size_bytes() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size_bytes())) == 0);
}

/// Rows [row, row + rows) and columns [column, column + columns) of a float32 matrix.
Tensor block(const Tensor& source, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
  Tensor result(DType::float32, {rows, columns});
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      result.view_as<float>()(i, j) = source.view_as<float>()(row + i, column + j);
    }
  }
  return result;
}

// --------------------------------------------------------------------------------------------------- construction

TEST(LayerConstruction, NamesTheWeightThatDoesNotFit) {
  for (const ModelConfig& config : all_configs()) {
    for (const layer::WeightSpec& spec : layer::weight_specs(config, 0, DType::float32)) {
      const auto refuses = [&](Tensor replacement) {
        LayerWeights weights = random_layer_weights(config, 0, DType::float32, 0);
        spec.of(weights) = std::move(replacement);
        try {
          const Layer layer(config, 0, std::move(weights), DType::float32);
          ADD_FAILURE() << spec.name << " was accepted";
        } catch (const Error& error) {
          EXPECT_EQ(error.argument(), spec.name);
        }
      };
      refuses(Tensor());
      if (spec.columns == 0) {
        refuses(Tensor(spec.dtype, {spec.rows + 1}));
        refuses(Tensor(DType::float16, {spec.rows}));
      } else {
        refuses(Tensor(spec.dtype, {spec.rows, spec.columns + 1}));
        refuses(Tensor(spec.dtype, {spec.rows - 1, spec.columns}));
        refuses(Tensor(DType::float16, {spec.rows, spec.columns}));
      }
    }
  }
}

TEST(LayerConstruction, RefusesLayersThatAreNotThere) {
  ModelConfig config = lightning_config();
  const auto build = [&](std::int64_t number, DType compute) {
    return Layer(config, number, random_layer_weights(lightning_config(), 0, compute, 0), compute);
  };
  EXPECT_NO_THROW(build(0, DType::float32));
  EXPECT_THROW(build(1, DType::float32), Error) << "layer 1 shares a selection and may have no indexer";
  EXPECT_THROW(build(2, DType::float32), Error);
  EXPECT_THROW(build(-1, DType::float32), Error);
  EXPECT_THROW(Layer(config, 0, random_layer_weights(config, 0, DType::float32, 0), DType::float16), Error);
  EXPECT_THROW(Layer(config, 0, random_layer_weights(config, 1, DType::float32, 0), DType::float32), Error)
      << "layer 0 needs an indexer";
  config.layer_kinds[0] = LayerKind::linear_attention;
  EXPECT_THROW(build(0, DType::float32), Error);
}

TEST(LayerConstruction, ChecksTheSink) {
  const ModelConfig config = lightning_config();
  LayerWeights weights = random_layer_weights(config, 0, DType::float32, 0);
  weights.sink = Tensor(DType::float32, {config.geometry.num_heads});
  const Layer layer(config, 0, std::move(weights), DType::float32);
  EXPECT_EQ(layer.attention_weights().sink.dim(0), config.geometry.num_heads);
  weights = random_layer_weights(config, 0, DType::float32, 0);
  weights.sink = Tensor(DType::float32, {config.geometry.num_heads + 1});
  EXPECT_THROW(Layer(config, 0, std::move(weights), DType::float32), Error);
}

// ----------------------------------------------------------------------------------------------------- projections

/// q of a model with one q_proj, in float64. (The low-rank form and the indexer are checked against recordings.)
TEST(Projections, OfOneQProj) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const ModelConfig config = full_attention_config();
  const Geometry& g = config.geometry;
  const Layer layer = random_layer(config, seed);
  const Tensor hidden = random_hidden(config, 5, seed);
  const std::vector<std::int32_t> positions = {3, 0, 4000, 17, 1};
  const Projected projected = layer.project(hidden.view(), view_of(positions));
  const auto q = projected.q.view_as<float>();
  q.expect("q", {5, g.num_heads, g.qk_head_dim()});
  const auto product = [&](std::int64_t t, std::int64_t row) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < config.hidden_size; ++i) {
      sum += static_cast<double>(hidden.view_as<float>()(t, i)) * layer.weights().q_proj.view_as<float>()(row, i);
    }
    return sum;
  };
  for (std::int64_t t = 0; t < 5; ++t) {
    for (std::int64_t h = 0; h < g.num_heads; ++h) {
      const std::int64_t row = h * g.qk_head_dim();
      for (std::int64_t i = 0; i < g.qk_nope_head_dim; ++i) {
        EXPECT_NEAR(q(t, h, i), product(t, row + i), 1e-5);
      }
      for (std::int64_t i = g.qk_nope_head_dim; i < g.qk_head_dim(); i += 2) {
        const double turn = std::pow(config.rope.theta, -static_cast<double>(i - g.qk_nope_head_dim) / 8.0);
        const std::complex<double> expected = std::complex<double>(product(t, row + i), product(t, row + i + 1)) *
                                              std::polar(1.0, positions[static_cast<std::size_t>(t)] * turn);
        EXPECT_NEAR(q(t, h, i), expected.real(), 1e-5);
        EXPECT_NEAR(q(t, h, i + 1), expected.imag(), 1e-5);
      }
    }
  }
}

TEST(Projections, LeaveOutWhatNobodyAsksFor) {
  for (const ModelConfig& config : all_configs()) {
    const Layer layer = random_layer(config, 1);
    const Tensor hidden = random_hidden(config, 6, 2);
    const std::vector<std::int32_t> positions = consecutive(6);
    const Projected all = layer.project(hidden.view(), view_of(positions));
    const Projected unscored = layer.project(hidden.view(), view_of(positions), false);
    const Projected keys = layer.project_keys(hidden.view(), view_of(positions));
    EXPECT_EQ(all.index_query.empty(), !config.indexer.has_value());
    EXPECT_TRUE(unscored.index_query.empty() && unscored.index_weight.empty());
    EXPECT_TRUE(same_bits(all.q, unscored.q));
    EXPECT_TRUE(keys.q.empty() && keys.index_query.empty() && keys.index_weight.empty());
    EXPECT_TRUE(same_bits(all.latent, keys.latent));
    EXPECT_TRUE(same_bits(all.rope_key, keys.rope_key));
    EXPECT_TRUE(same_bits(all.index_key, keys.index_key) && same_bits(all.index_key, unscored.index_key));
    EXPECT_TRUE(same_bits(all.index_gate, keys.index_gate));
    EXPECT_EQ(all.rope_key.empty(), config.geometry.qk_rope_head_dim == 0);
  }
}

TEST(Projections, RefuseWhatDoesNotFit) {
  const ModelConfig config = lightning_config();
  const Layer layer = random_layer(config, 1);
  const std::vector<std::int32_t> positions = consecutive(6);
  const auto project = [&](const Tensor& hidden) { return layer.project(hidden.view(), view_of(positions)); };
  EXPECT_NO_THROW(project(random_hidden(config, 6, 0)));
  EXPECT_THROW(project(random_hidden(config, 5, 0)), Error);
  EXPECT_THROW(project(random_hidden(config, 6, 0, DType::bfloat16)), Error);
  EXPECT_THROW(project(Tensor(DType::float32, {6, config.hidden_size - 1})), Error);
  EXPECT_THROW(layer.output(Tensor(DType::float32, {6, 4, 13}).view()), Error);
  EXPECT_THROW(layer.output(Tensor(DType::bfloat16, {6, 4, 12}).view()), Error);
}

// --------------------------------------------------------------------------------------------------- whole layers

constexpr std::int64_t kPrompt = 41;

// Products of other sizes round their sums otherwise, and once in some hundred fresh seeds that would turn a near tie
// of the indexer. Tests that compare selections made in steps of different sizes have one seed.
constexpr std::uint64_t kSeedWithoutNearTies = 20;

Tensor whole_prompt(const Layer& layer, const Tensor& hidden, std::int64_t chunk) {
  return test::run_prompt(layer, CacheFormat::float32, hidden.view(), chunk, {}, std::nullopt);
}

TEST(LayerForward, DoesNotDependOnChunks) {
  const std::uint64_t seed = kSeedWithoutNearTies;
  for (const ModelConfig& config : all_configs()) {
    const Layer layer = random_layer(config, seed);
    const Tensor hidden = random_hidden(config, kPrompt, seed);
    const Tensor whole = whole_prompt(layer, hidden, kPrompt);
    for (const std::int64_t chunk : {1, 2, 7, 16, 40}) {
      EXPECT_LE(worst_row(whole_prompt(layer, hidden, chunk), whole), 1e-5) << "chunk " << chunk;
    }
  }
}

TEST(LayerForward, DoesNotDependOnItsNeighbours) {
  const std::uint64_t seed = kSeedWithoutNearTies;
  for (const ModelConfig& config : all_configs()) {
    const Layer layer = random_layer(config, seed);
    const Tensor hidden = random_hidden(config, 3 * kPrompt, seed);
    // Three requests in one step, the second of them without tokens.
    test::LayerRun run(layer, CacheFormat::float32, {2 * kPrompt, 5, kPrompt});
    run.open({2 * kPrompt, 0, kPrompt});
    const Tensor packed = run.forward(hidden.view(), {});
    const auto alone = [&](std::int64_t begin, std::int64_t end) {
      return test::run_prompt(layer, CacheFormat::float32, hidden.view().slice(begin, end), end - begin, {},
                              std::nullopt);
    };
    EXPECT_LE(worst_row(block(packed, 0, 2 * kPrompt, 0, 48), alone(0, 2 * kPrompt)), 1e-5);
    EXPECT_LE(worst_row(block(packed, 2 * kPrompt, kPrompt, 0, 48), alone(2 * kPrompt, 3 * kPrompt)), 1e-5);
  }
}

/// The weights of one rank, cut from those of the whole layer.
LayerWeights shard(const LayerWeights& whole, const ModelConfig& rank_config, std::int64_t rank) {
  const Geometry& g = rank_config.geometry;
  const auto copy = [](const Tensor& tensor) {
    Tensor result = tensor.rank() == 1 ? Tensor(tensor.dtype(), {tensor.dim(0)})
                                       : Tensor(tensor.dtype(), {tensor.dim(0), tensor.dim(1)});
    std::memcpy(result.data(), tensor.data(), static_cast<std::size_t>(tensor.size_bytes()));
    return result;
  };
  const auto rows = [&](const Tensor& tensor, std::int64_t per_head) {
    const std::int64_t count = g.num_heads * per_head;
    return block(tensor, rank * count, count, 0, tensor.dim(1));
  };
  LayerWeights result;
  if (rank_config.q_lora_rank) {
    result.q_a_proj = copy(whole.q_a_proj);
    result.q_a_norm = copy(whole.q_a_norm);
    result.q_b_proj = rows(whole.q_b_proj, g.qk_head_dim());
  } else {
    result.q_proj = rows(whole.q_proj, g.qk_head_dim());
  }
  result.kv_a_proj_with_mqa = copy(whole.kv_a_proj_with_mqa);
  result.kv_a_norm = copy(whole.kv_a_norm);
  result.kv_b_proj = rows(whole.kv_b_proj, g.qk_nope_head_dim + g.v_head_dim);
  const std::int64_t columns = g.num_heads * g.v_head_dim;
  result.o_proj = block(whole.o_proj, 0, whole.o_proj.dim(0), rank * columns, columns);
  if (whole.indexer) {
    const IndexerWeights& from = *whole.indexer;
    IndexerWeights& to = result.indexer.emplace();
    for (Tensor IndexerWeights::*member :
         {&IndexerWeights::wq_b, &IndexerWeights::wk, &IndexerWeights::k_norm_weight, &IndexerWeights::k_norm_bias,
          &IndexerWeights::weights_proj, &IndexerWeights::offset_bias, &IndexerWeights::gate}) {
      if (!(from.*member).empty()) {
        to.*member = copy(from.*member);
      }
    }
  }
  return result;
}

TEST(LayerForward, RanksAddUpToTheWhole) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (const ModelConfig& config : all_configs()) {
    const LayerWeights weights = random_layer_weights(config, 0, DType::float32, seed);
    const Tensor hidden = random_hidden(config, kPrompt, seed);
    const Tensor whole = whole_prompt(random_layer(config, seed), hidden, kPrompt);
    for (const std::int64_t ranks : {2, 4}) {
      const ModelConfig rank_config = config.shard(ranks);
      Tensor sum(DType::float32, {kPrompt, config.hidden_size});
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const Layer layer(rank_config, 0, shard(weights, rank_config, rank), DType::float32, 1);
        const Tensor part = whole_prompt(layer, hidden, kPrompt);
        EXPECT_GT(worst_row(part, whole), 0.1) << "a part is not the whole";
        for (std::int64_t i = 0; i < kPrompt * config.hidden_size; ++i) {
          sum.view_as<float>().data()[i] += part.view_as<float>().data()[i];
        }
      }
      EXPECT_LE(worst_row(sum, whole), 1e-5) << ranks << " ranks";
    }
  }
}

TEST(LayerForward, DoesNotDependOnThreads) {
  const std::uint64_t seed = kSeedWithoutNearTies;
  for (const ModelConfig& config : all_configs()) {
    const Tensor hidden = random_hidden(config, kPrompt, seed);
    const auto run_on = [&](int threads) {
      const Layer layer(config, 0, random_layer_weights(config, 0, DType::float32, seed), DType::float32, threads);
      test::LayerRun run(layer, CacheFormat::float32, {kPrompt});
      run.open({kPrompt});
      test::StepOptions options;
      options.threads = threads;
      return run.forward(hidden.view(), options);
    };
    EXPECT_LE(worst_row(run_on(3), run_on(1)), 1e-5);
  }
}

TEST(LayerForward, NoTokens) {
  for (const ModelConfig& config : all_configs()) {
    for (const DType compute : {DType::float32, DType::bfloat16}) {
      const Layer layer = random_layer(config, 0, compute);
      const CacheFormat format = compute == DType::float32 ? CacheFormat::float32 : CacheFormat::bfloat16;
      test::LayerRun run(layer, format, {5, 7});
      run.open({0, 0});
      const Tensor out = run.forward(Tensor(compute, {0, config.hidden_size}).view(), {});
      EXPECT_EQ(out.rank(), 2);
      EXPECT_EQ(out.dim(0), 0);
      EXPECT_EQ(out.dim(1), config.hidden_size);
    }
  }
}

TEST(LayerForward, BothComputeDtypesAgree) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  // Without a selection: near ties would select other keys in bfloat16.
  const ModelConfig config = full_attention_config();
  const Tensor hidden = random_hidden(config, kPrompt, seed, DType::bfloat16);
  const Layer narrow = random_layer(config, seed, DType::bfloat16);
  LayerWeights widened = random_layer_weights(config, 0, DType::float32, seed);
  for (const auto& spec : layer::weight_specs(config, 0, DType::float32)) {
    if (spec.columns > 0) {
      spec.of(widened) = test::to_float(spec.of(narrow.weights()));
    }
  }
  const Layer wide(config, 0, std::move(widened), DType::float32, 1);
  const Tensor out = test::run_prompt(narrow, CacheFormat::bfloat16, hidden.view(), 7, {}, std::nullopt);
  EXPECT_LE(worst_row(out, whole_prompt(wide, test::to_float(hidden), kPrompt)), 3e-2);
}

TEST(LayerSelect, IsEmptyWhereNothingReadsIt) {
  const ModelConfig config = lightning_config();
  const Layer layer = random_layer(config, 3);
  test::LayerRun run(layer, CacheFormat::float32, {8});
  run.open({8});
  const Tensor hidden = random_hidden(config, 8, 3);
  const Projected projected = layer.project(hidden.view(), run.positions(), false);
  const SelectionBuffer buffer = layer.select(run.plan({}), projected, run.caches().index, run.requests(), 1 << 20);
  EXPECT_TRUE(buffer.index.empty());
  EXPECT_TRUE(buffer.selection().index.empty());
  EXPECT_TRUE(buffer.selection().count.empty());
}

TEST(LayerSelect, LeavesOutCoveredRequestsOfAMixedBatch) {
  const ModelConfig config = lightning_config();
  const Layer layer = random_layer(config, 3);
  test::LayerRun run(layer, CacheFormat::float32, {8, 20});
  run.open({8, 20});
  const Tensor hidden = random_hidden(config, 28, 3);
  const Projected projected = layer.project(hidden.view(), run.positions());
  layer.append(projected, run.caches(), CacheFormat::float32, run.requests(), run.slot_mapping());
  const SelectionBuffer buffer = layer.select(run.plan({}), projected, run.caches().index, run.requests(), 1 << 20);
  const auto count = buffer.selection().count;
  for (std::int64_t t = 0; t < 8; ++t) {
    EXPECT_EQ(count(t), 0) << "row " << t << " is covered";
  }
  EXPECT_EQ(count(27), 8);
}

TEST(LayerSelect, NeedsAnotherLayersSelection) {
  const ModelConfig config = lightning_config();
  const Layer layer(config, 1, random_layer_weights(config, 1, DType::float32, 3), DType::float32);
  EXPECT_FALSE(layer.scores());
  const Tensor hidden = random_hidden(config, 9, 3);
  test::LayerRun run(layer, CacheFormat::float32, {9});
  run.open({9});
  EXPECT_THROW((void)run.forward(hidden.view(), {}), Error);
  // Covered, it needs none.
  test::LayerRun covered(layer, CacheFormat::float32, {8});
  covered.open({8});
  EXPECT_NO_THROW((void)covered.forward(hidden.view().slice(0, 8), {}));
}

TEST(LayerSelect, OwnAndGivenSelectionAgree) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (const ModelConfig& config : {lightning_config(), kpool_config()}) {
    const Layer layer = random_layer(config, seed);
    const Tensor hidden = random_hidden(config, kPrompt, seed);
    test::LayerRun run(layer, CacheFormat::float32, {kPrompt});
    run.open({kPrompt});
    const Projected projected = layer.project(hidden.view(), run.positions());
    layer.append(projected, run.caches(), CacheFormat::float32, run.requests(), run.slot_mapping());
    const SelectionBuffer own = layer.select(run.plan({std::nullopt, std::nullopt, SelectionRule::opaque()}), projected,
                                             run.caches().index, run.requests(), 1 << 20);
    const Tensor given = run.forward(hidden.view(), {std::nullopt, own.selection(), SelectionRule::opaque()});
    EXPECT_LE(worst_row(given, whole_prompt(layer, hidden, kPrompt)), 1e-5);
  }
}

}  // namespace
}  // namespace headrace
