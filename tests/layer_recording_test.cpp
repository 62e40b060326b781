// SPDX-License-Identifier: Apache-2.0
// Recorded layers of Hugging Face transformers (tests/data/recordings), down every path.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "headrace/layer.h"
#include "headrace/recording.h"
#include "support/layer_run.h"

namespace headrace {
namespace {

using test::relative_error;
using test::RelativeError;
using test::run_prompt;

struct Bound {
  double whole;
  double worst_row;
};
constexpr Bound kFloat32Bound{3e-6, 1e-5};
constexpr Bound kBfloat16Bound{1e-2, 2e-2};

bool within(const RelativeError& error, const Bound& bound) {
  return error.whole <= bound.whole && error.worst_row <= bound.worst_row;
}

/// A folder of tests/data/recordings.
struct Recording {
  std::filesystem::path folder;
  ModelConfig config;
  std::vector<RecordedLayer> layers;

  explicit Recording(const std::string& name)
      : folder(std::filesystem::path(HEADRACE_TEST_DATA) / "recordings" / name),
        config(load_model_config(folder, Reading::transformers)),  // which recorded them
        layers(load_recording(folder / "recording.safetensors")) {}

  [[nodiscard]] Layer layer(std::int64_t number, DType compute) const { return layer(number, compute, config); }
  /// With a configuration other than the model's own.
  [[nodiscard]] Layer layer(std::int64_t number, DType compute, const ModelConfig& other) const {
    return Layer(other, number, load_layer_weights(folder, config, number, 0, compute), compute, 1);
  }
  /// The recorded selection that a layer uses: its own, or that of the layer it shares with.
  [[nodiscard]] View<const std::int32_t> selection(std::int64_t number) const {
    const std::int64_t source = config.selection_source(number);
    const auto found = std::find_if(layers.begin(), layers.end(), [&](const auto& l) { return l.layer == source; });
    return found->topk_indices.view_as<std::int32_t>();
  }
};

CacheFormat unquantised(DType compute) {
  return compute == DType::float32 ? CacheFormat::float32 : CacheFormat::bfloat16;
}

class LayerRecording : public testing::TestWithParam<std::string> {};
/// Those of models with rope.
class RopedLayerRecording : public LayerRecording {};

/// The rows, from the first, that a path can serve when the prompt comes in chunks of this size: of dense_mha just the
/// chunks that end within the covered prefix, else all.
std::int64_t rows_on(Path path, const Attention& attention, std::int64_t length, std::int64_t chunk) {
  if (path != Path::dense_mha) {
    return length;
  }
  const std::int64_t rows = attention.rule.covered_prefix() / chunk * chunk;
  EXPECT_FALSE(unmet_requirements(path, attention, rows, std::min(length, rows + chunk), true).empty());
  return rows;
}

void check_paths(const Recording& recording, DType compute, const Bound& bound) {
  for (const RecordedLayer& recorded : recording.layers) {
    const Layer layer = recording.layer(recorded.layer, compute);
    const Tensor hidden = test::convert(recorded.hidden_states, compute);
    const std::int64_t length = hidden.dim(0);
    for (const Path path : kPaths) {
      for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{7}, std::int64_t{64}, length}) {
        const std::int64_t rows = rows_on(path, layer.attention(unquantised(compute)), length, chunk);
        if (rows == 0) {
          continue;
        }
        const Tensor out = run_prompt(layer, unquantised(compute), hidden.view().slice(0, rows), chunk,
                                      recording.selection(recorded.layer), path);
        const RelativeError error =
            relative_error(out.view_as<float>(), recorded.output.view_as<float>().slice(0, rows));
        EXPECT_TRUE(within(error, bound))
            << fmt::format("layer {} {} {} chunk {}: rel_error {:.2e}, max_row_error {:.2e}", recorded.layer,
                           name_of(compute), name_of(path), chunk, error.whole, error.worst_row);
      }
    }
  }
}

TEST_P(LayerRecording, EveryPathInFloat32) { check_paths(Recording(GetParam()), DType::float32, kFloat32Bound); }

TEST_P(LayerRecording, EveryPathInBfloat16) { check_paths(Recording(GetParam()), DType::bfloat16, kBfloat16Bound); }

/// Under the opaque rule nothing is covered, so that every row reads the recorded selection.
TEST_P(LayerRecording, EveryRowReadsTheSelection) {
  const Recording recording(GetParam());
  for (const RecordedLayer& recorded : recording.layers) {
    const Layer layer = recording.layer(recorded.layer, DType::float32);
    for (const Path path : {Path::masked_mha, Path::topk_mqa}) {
      test::LayerRun run(layer, CacheFormat::float32, {recorded.output.dim(0)});
      run.open({static_cast<std::int32_t>(recorded.output.dim(0))});
      const Tensor out =
          run.forward(recorded.hidden_states.view(),
                      {path, Selection{recording.selection(recorded.layer), {}}, SelectionRule::opaque()});
      const RelativeError error = relative_error(out.view_as<float>(), recorded.output.view_as<float>());
      EXPECT_TRUE(within(error, kFloat32Bound)) << name_of(path) << " " << error.whole << " " << error.worst_row;
    }
  }
}

/// What becomes of a recording when the layer selects for itself.
struct SelectionMatch {
  std::int64_t recorded = 0;  ///< recorded positions
  std::int64_t matched = 0;   ///< of them those whose own score reaches our k-th, within 1e-6 of the row's
                              ///< largest
  std::int64_t rows_of_other_size = 0;

  [[nodiscard]] bool perfect() const { return recorded > 0 && matched == recorded && rows_of_other_size == 0; }
};

/// Judges one row. `scores` has one entry a key (lightning) or a complete pool (k-pool).
void judge_row(const IndexerGeometry& indexer, const std::vector<float>& scores, const std::set<std::int32_t>& ours,
               const std::set<std::int32_t>& recorded, SelectionMatch& match) {
  const std::int64_t pool = indexer.kpool ? indexer.pool : 1;
  const auto scored = [&](std::int32_t position) { return position / pool < static_cast<std::int64_t>(scores.size()); };
  const auto score = [&](std::int32_t position) { return scores[static_cast<std::size_t>(position / pool)]; };
  float kth = std::numeric_limits<float>::infinity();
  for (const std::int32_t position : ours) {
    kth = scored(position) ? std::min(kth, score(position)) : kth;
  }
  // In magnitude: head weights may be negative, and then all of a row's scores can be.
  float largest = 0.0F;
  for (const float s : scores) {
    largest = std::max(largest, std::abs(s));
  }
  match.rows_of_other_size += ours.size() != recorded.size() ? 1 : 0;
  for (const std::int32_t position : recorded) {
    ++match.recorded;
    // The tail is not scored: it has to be there.
    const bool matches = scored(position) ? score(position) >= kth - 1e-6F * largest : ours.contains(position);
    match.matched += matches ? 1 : 0;
  }
}

/// Appends the whole prompt `chunk` tokens a step, selects in every step, and judges every row.
SelectionMatch match_selection(const Layer& layer, const RecordedLayer& recorded, std::int64_t chunk) {
  const std::int64_t length = recorded.hidden_states.dim(0);
  const auto recorded_index = recorded.topk_indices.view_as<std::int32_t>();
  const IndexerGeometry& indexer = *layer.config().indexer;
  test::LayerRun run(layer, CacheFormat::float32, {length});
  SelectionMatch match;
  for (std::int64_t begin = 0; begin < length; begin += chunk) {
    const std::int64_t end = std::min(length, begin + chunk);
    run.open({static_cast<std::int32_t>(end - begin)});
    const Projected projected = layer.project(recorded.hidden_states.view().slice(begin, end), run.positions());
    layer.append(projected, run.caches(), CacheFormat::float32, run.requests(), run.slot_mapping());
    const Plan plan = run.plan({std::nullopt, std::nullopt, SelectionRule::opaque()});
    const SelectionBuffer own =
        layer.select(plan, projected, run.caches().index, run.requests(), std::int64_t{1} << 20);
    const Selection selection = own.selection();
    const IndexQueries queries{projected.index_query.view(), projected.index_weight.view_as<float>()};
    for (std::int64_t t = 0; t < end - begin; ++t) {
      std::vector<float> scores(static_cast<std::size_t>(length));
      scores.resize(static_cast<std::size_t>(score_row(indexer, DType::float32, run.caches().index, queries,
                                                       run.requests(), 0, t, View<float>(scores.data(), {length}))));
      const std::int32_t* row = selection.index.at(t);
      const std::set<std::int32_t> ours(row, row + selection.count(t));
      std::set<std::int32_t> theirs;
      for (std::int64_t i = 0; i < recorded_index.dim(1); ++i) {
        theirs.insert(recorded_index(begin + t, i));
      }
      theirs.erase(-1);
      EXPECT_EQ(static_cast<std::int64_t>(ours.size()), selection.count(t))
          << "a repeated position in row " << begin + t;
      judge_row(indexer, scores, ours, theirs, match);
    }
  }
  return match;
}

TEST_P(LayerRecording, TheIndexerSelectsWhatWasRecorded) {
  const Recording recording(GetParam());
  for (const RecordedLayer& recorded : recording.layers) {
    if (recorded.topk_indices.empty()) {
      continue;
    }
    const Layer layer = recording.layer(recorded.layer, DType::float32);
    for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{7}, std::int64_t{64}, recorded.output.dim(0)}) {
      const SelectionMatch match = match_selection(layer, recorded, chunk);
      EXPECT_TRUE(match.perfect()) << "chunk " << chunk << ": " << match.matched << " of " << match.recorded << ", "
                                   << match.rows_of_other_size << " rows of another size";
    }
  }
}

// The bounds must catch mistakes: each of these runs a recording under a configuration with one thing wrong.

RelativeError error_under(const Recording& recording, const ModelConfig& wrong) {
  const RecordedLayer& recorded = recording.layers.front();
  const Layer layer = recording.layer(recorded.layer, DType::float32, wrong);
  const Tensor out = run_prompt(layer, CacheFormat::float32, recorded.hidden_states.view(), recorded.output.dim(0),
                                recording.selection(recorded.layer), std::nullopt);
  return relative_error(out.view_as<float>(), recorded.output.view_as<float>());
}

TEST_P(LayerRecording, WrongNormEpsilonFails) {
  const Recording recording(GetParam());
  ModelConfig wrong = recording.config;
  const auto exchange = [](double& epsilon) { epsilon = epsilon < 5e-6 ? 1e-5 : 1e-6; };
  exchange(wrong.kv_a_norm_epsilon);
  exchange(wrong.q_a_norm_epsilon);
  const RelativeError error = error_under(recording, wrong);
  EXPECT_GT(error.whole, kFloat32Bound.whole);
}

TEST_P(LayerRecording, WrongLatentNormEpsilonAloneFails) {
  const Recording recording(GetParam());
  ModelConfig wrong = recording.config;
  wrong.kv_a_norm_epsilon = wrong.kv_a_norm_epsilon < 5e-6 ? 1e-5 : 1e-6;
  const RelativeError error = error_under(recording, wrong);
  EXPECT_GT(error.whole, kFloat32Bound.whole);
}

TEST_P(RopedLayerRecording, WrongRopePairingFails) {
  const Recording recording(GetParam());
  ModelConfig wrong = recording.config;
  wrong.rope.interleave = !wrong.rope.interleave;
  const RelativeError error = error_under(recording, wrong);
  EXPECT_GT(error.whole, kBfloat16Bound.whole) << "not even bfloat16's bound may pass";
}

TEST_P(RopedLayerRecording, WrongIndexerRopePairingFails) {
  const Recording recording(GetParam());
  ModelConfig wrong = recording.config;
  wrong.indexer->rope_interleave = !wrong.indexer->rope_interleave;
  const RecordedLayer& recorded = recording.layers.front();
  const SelectionMatch match =
      match_selection(recording.layer(recorded.layer, DType::float32, wrong), recorded, recorded.output.dim(0));
  EXPECT_LT(match.matched, match.recorded);
}

std::string name_of_case(const testing::TestParamInfo<std::string>& info) { return info.param; }

INSTANTIATE_TEST_SUITE_P(All, LayerRecording,
                         testing::Values("deepseek_v32", "glm_moe_dsa", "glm_moe_dsa_8heads", "glm5_next"),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(All, RopedLayerRecording, testing::Values("deepseek_v32", "glm_moe_dsa", "glm_moe_dsa_8heads"),
                         name_of_case);

}  // namespace
}  // namespace headrace
