// SPDX-License-Identifier: Apache-2.0
// A request's bits are its own, as bits_test.cpp says, for a whole layer: projections, norms, rope, cache, the
// indexer's selection, attention, output projection. Sizes are odd on purpose: rows then lie at every alignment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "headrace/layer.h"
#include "layer/random.h"
#include "support/layer_run.h"
#include "support/random.h"

namespace headrace {
namespace {

using test::Random;

constexpr std::int64_t kCut = 64;
constexpr std::int64_t kBudget = 24;  ///< keys that the indexers select

enum class Kind : std::uint8_t { lightning, kpool, no_indexer };

struct LayerCase {
  Kind kind;
  DType compute;
  CacheFormat format;
};

ModelConfig config_of(const LayerCase& c) {
  ModelConfig config;
  config.model_type = "a layer of a test";
  config.hidden_size = 101;
  config.num_layers = 1;
  config.max_position_embeddings = 4096;
  config.geometry = {3, 37, 19, 10, 21};
  if (c.format == CacheFormat::fp8_ds_mla) {
    config.geometry.kv_lora_rank = 512;
    config.geometry.qk_rope_head_dim = 64;
  }
  if (c.kind == Kind::kpool) {
    config.geometry.qk_rope_head_dim = 0;
  }
  if (c.kind != Kind::no_indexer) {
    config.q_lora_rank = 27;
    IndexerGeometry indexer;
    indexer.num_heads = 3;
    indexer.head_dim = 14;
    indexer.topk = kBudget;
    indexer.rope_dim = config.geometry.qk_rope_head_dim == 10 ? 10 : 0;
    indexer.kpool = c.kind == Kind::kpool;
    indexer.pool = c.kind == Kind::kpool ? 3 : 1;  // 64 is no multiple of it
    indexer.tail = c.kind == Kind::kpool;
    config.indexer = indexer;
  }
  config.rope.dim = config.geometry.qk_rope_head_dim;
  config.softmax_scale = 1.0 / std::sqrt(static_cast<double>(config.geometry.qk_head_dim()));
  config.layer_kinds = {c.kind == Kind::no_indexer ? LayerKind::full_attention : LayerKind::sparse_attention};
  config.shares_selection = {false};
  return config;
}

Layer layer_of(const LayerCase& c, std::uint64_t seed, int threads) {
  const ModelConfig config = config_of(c);
  LayerWeights weights = random_layer_weights(config, 0, c.compute, seed);
  weights.sink = Tensor(DType::float32, {config.geometry.num_heads});
  layer::fill_normal(weights.sink.view(), seed, 2000, 1.0, 1);
  return Layer(config, 0, std::move(weights), c.compute, threads);
}

/// Each request's tokens, as the layer below left them.
std::vector<Tensor> prompts_of(const LayerCase& c, const std::vector<std::int64_t>& lengths, std::uint64_t seed) {
  std::vector<Tensor> prompts;
  for (const std::int64_t length : lengths) {
    prompts.emplace_back(c.compute, std::initializer_list<std::int64_t>{length, config_of(c).hidden_size});
    layer::fill_normal(prompts.back().view(), seed, 1000 + prompts.size(), 1.0, 1);
  }
  return prompts;
}

/// What came out for each token of one request.
struct Row {
  Path path = Path::topk_mqa;
  std::vector<std::byte> output;
  std::vector<std::byte> selection;  ///< index and count; empty where the row reads none
};

std::vector<std::byte> bytes_of(const Tensor& tensor, std::int64_t row) {
  const std::int64_t size = tensor.size_bytes() / tensor.dim(0);
  return {tensor.data() + row * size, tensor.data() + (row + 1) * size};
}

/// Some of the prompts, in the order given, step by step through the layer.
class Prompts {
 public:
  Prompts(const Layer& layer, CacheFormat format, const std::vector<Tensor>& prompts, std::vector<std::size_t> chosen,
          std::optional<Path> force, int threads)
      : layer_(layer),
        format_(format),
        prompts_(prompts),
        chosen_(std::move(chosen)),
        options_{.force = force, .shared = {}, .rule = {}, .threads = threads},
        run_(layer, format, capacities(), 7),
        rows_(chosen_.size()) {}

  /// The next lengths[i] tokens of the i-th chosen prompt.
  void step(const std::vector<std::int32_t>& lengths) {
    run_.open(lengths);
    const Tensor hidden = next_tokens(lengths);
    const Plan plan = run_.plan(options_);
    const Projected projected = layer_.project(hidden.view(), run_.positions());
    layer_.append(projected, run_.caches(), format_, run_.requests(), run_.slot_mapping());
    const SelectionBuffer selected =
        layer_.select(plan, projected, run_.caches().index, run_.requests(), std::int64_t{1} << 22);
    const Geometry& g = layer_.config().geometry;
    Tensor attended(layer_.compute(), {hidden.dim(0), g.num_heads, g.v_head_dim});
    Tensor workspace(DType::uint8, {plan.workspace_bytes()});
    const Inputs inputs{projected.q.view(), run_.caches().latent, run_.requests(), selected.selection()};
    attend(plan, layer_.attention_weights(), inputs, {attended.view(), {}},
           {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())});
    keep(plan, layer_.output(attended.view()), selected);
  }

  [[nodiscard]] std::int32_t left(std::size_t i) const {
    return static_cast<std::int32_t>(prompts_[chosen_[i]].dim(0) - std::ssize(rows_[i]));
  }
  [[nodiscard]] const std::vector<Row>& rows(std::size_t i) const { return rows_[i]; }
  [[nodiscard]] std::size_t requests() const noexcept { return chosen_.size(); }
  [[nodiscard]] std::size_t prompt(std::size_t i) const { return chosen_[i]; }

 private:
  [[nodiscard]] std::vector<std::int64_t> capacities() const {
    std::vector<std::int64_t> lengths;
    for (const std::size_t prompt : chosen_) {
      lengths.push_back(prompts_[prompt].dim(0));
    }
    return lengths;
  }

  [[nodiscard]] Tensor next_tokens(const std::vector<std::int32_t>& lengths) const {
    Tensor hidden(layer_.compute(), {run_.tokens(), layer_.config().hidden_size});
    const std::int64_t token_bytes = layer_.config().hidden_size * size_of(layer_.compute());
    std::byte* to = hidden.data();
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const std::byte* from = prompts_[chosen_[i]].data() + std::ssize(rows_[i]) * token_bytes;
      to = std::copy_n(from, lengths[i] * token_bytes, to);
    }
    return hidden;
  }

  void keep(const Plan& plan, const Tensor& output, const SelectionBuffer& selected) {
    std::int64_t token = 0;
    for (const RequestPlan& request : plan.requests()) {
      for (const Segment& segment : request.segments) {
        for (std::int64_t position = segment.begin; position < segment.end; ++position, ++token) {
          Row row{segment.path, bytes_of(output, token), {}};
          if (!selected.index.empty() && !request.skip_scoring && position >= request.scoring_begin) {
            row.selection = bytes_of(selected.index, token);
            const std::vector<std::byte> count = bytes_of(selected.count, token);
            row.selection.insert(row.selection.end(), count.begin(), count.end());
          }
          rows_[static_cast<std::size_t>(request.request)].push_back(std::move(row));
        }
      }
    }
  }

  const Layer& layer_;
  CacheFormat format_;
  const std::vector<Tensor>& prompts_;
  std::vector<std::size_t> chosen_;
  test::StepOptions options_;
  test::LayerRun run_;
  std::vector<std::vector<Row>> rows_;
};

/// A row must have the same bits where the rows around it, up to the multiples of 64, take the same paths in both.
/// Returns how many rows those are.
std::int64_t compare(const std::vector<Row>& have, const std::vector<Row>& want, const std::string& what) {
  EXPECT_EQ(have.size(), want.size());
  const auto same_paths = [&](std::int64_t position) {
    const std::int64_t first = position / kCut * kCut;
    const std::int64_t last = std::min<std::int64_t>(std::ssize(want), first + kCut);
    return std::equal(have.begin() + first, have.begin() + last, want.begin() + first,
                      [](const Row& a, const Row& b) { return a.path == b.path; });
  };
  std::int64_t compared = 0;
  for (std::int64_t position = 0; position < std::ssize(want); ++position) {
    const Row& row = have[static_cast<std::size_t>(position)];
    const Row& expected = want[static_cast<std::size_t>(position)];
    if (!row.selection.empty() && !expected.selection.empty() && row.selection != expected.selection) {
      ADD_FAILURE() << what << ": the selection at position " << position << " differs";
      return compared;
    }
    if (same_paths(position)) {
      ++compared;
      if (row.output != expected.output) {
        ADD_FAILURE() << what << ": the output at position " << position << " differs";
        return compared;
      }
    }
  }
  return compared;
}

/// Some tokens of some requests, cut at multiples of 64 only.
std::vector<std::int32_t> some_lengths(const Prompts& run, Random& random) {
  std::vector<std::int32_t> lengths;
  for (std::size_t i = 0; i < run.requests(); ++i) {
    const std::int32_t left = run.left(i);
    const auto tiles = static_cast<std::int32_t>(random.below(left / kCut + 2));
    lengths.push_back(std::min<std::int32_t>(left, tiles * kCut));
  }
  return lengths;
}

std::vector<std::int32_t> everything(const Prompts& run) {
  std::vector<std::int32_t> lengths;
  for (std::size_t i = 0; i < run.requests(); ++i) {
    lengths.push_back(run.left(i));
  }
  return lengths;
}

class LayerBits : public testing::TestWithParam<LayerCase> {};

TEST_P(LayerBits, OfARequestDependOnThatRequestAlone) {
  const LayerCase c = GetParam();
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const std::vector<std::int64_t> lengths = {1 + random.below(5), 130 + random.below(130), 1 + random.below(200)};
  const std::vector<Tensor> prompts = prompts_of(c, lengths, seed);
  const Layer layer = layer_of(c, seed, 1);
  const Layer threaded = layer_of(c, seed, 3);
  std::vector<std::optional<Path>> forces = {std::nullopt, Path::masked_mha, Path::topk_mqa};
  if (c.kind == Kind::no_indexer) {
    forces.emplace_back(Path::dense_mha);
  }
  for (const auto& force : forces) {
    SCOPED_TRACE(force ? name_of(*force) : "routed");
    std::vector<std::vector<Row>> alone;
    for (std::size_t prompt = 0; prompt < prompts.size(); ++prompt) {
      Prompts run(layer, c.format, prompts, {prompt}, force, 1);
      run.step(everything(run));
      alone.push_back(run.rows(0));
    }
    std::int64_t compared = 0;
    const auto expect_alone = [&](const Prompts& run, const std::string& what) {
      for (std::size_t i = 0; i < run.requests(); ++i) {
        compared += compare(run.rows(i), alone[run.prompt(i)], what + ", prompt " + std::to_string(run.prompt(i)));
      }
    };
    Prompts together(layer, c.format, prompts, {2, 0, 1}, force, 1);
    together.step(everything(together));
    expect_alone(together, "together");
    const std::int64_t rows = lengths[0] + lengths[1] + lengths[2];
    EXPECT_EQ(compared, rows) << "a request's path depends on the batch";
    Prompts shared(threaded, c.format, prompts, {0, 2, 1}, force, 3);
    shared.step(everything(shared));
    expect_alone(shared, "3 threads");
    Prompts cut(threaded, c.format, prompts, {1, 2, 0}, force, 2);
    while (std::ranges::any_of(everything(cut), [](std::int32_t left) { return left > 0; })) {
      cut.step(some_lengths(cut, random));
    }
    expect_alone(cut, "cut, 2 threads");
    if (force) {
      EXPECT_EQ(compared, 3 * rows);
    }
  }
}

std::vector<LayerCase> all_cases() {
  std::vector<LayerCase> cases;
  for (const Kind kind : {Kind::lightning, Kind::kpool, Kind::no_indexer}) {
    for (const DType compute : {DType::float32, DType::bfloat16}) {
      for (const CacheFormat format :
           {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8, CacheFormat::fp8_ds_mla}) {
        cases.push_back({kind, compute, format});
      }
    }
  }
  return cases;
}

std::string name_of_case(const testing::TestParamInfo<LayerCase>& info) {
  const LayerCase& c = info.param;
  const std::string kind = c.kind == Kind::lightning ? "lightning" : c.kind == Kind::kpool ? "kpool" : "no_indexer";
  return kind + "_" + std::string(name_of(c.compute)) + "_" + std::string(name_of(c.format)) + "_cache";
}

INSTANTIATE_TEST_SUITE_P(Layers, LayerBits, testing::ValuesIn(all_cases()), name_of_case);

}  // namespace
}  // namespace headrace
