// SPDX-License-Identifier: Apache-2.0
#include "recorded_selection.h"

#include <fmt/core.h>

#include <algorithm>

#include "headrace/error.h"
#include "selection_match.h"
#include "step.h"
#include "step_selection.h"

namespace headrace::app {
namespace {

std::span<const std::int32_t> row_of(const Tensor& index, std::int64_t row) {
  const View<const std::int32_t> view = index.view_as<std::int32_t>();
  return {view.at(row), static_cast<std::size_t>(view.dim(1))};
}

/// The rows of one step: selects them, and matches them with the recorded ones.
class SelectStep {
 public:
  SelectStep(const Layer& layer, const RecordedLayer& recorded, const Step& step, const CacheView& index_cache,
             const Projected& projected)
      : layer_(layer),
        recorded_(recorded),
        step_(step),
        index_cache_(index_cache),
        queries_{projected.index_query.view(), projected.index_weight.view_as<float>()} {}

  void select(SelectionBuffer& buffer, const Options& options) const {
    const Piece& piece = step_.pieces().front();
    const IndexerGeometry& indexer = *layer_.config().indexer;
    const std::vector<std::int64_t> every_row{0};
    headrace::select(indexer, layer_.compute(), index_cache_, queries_, step_.requests(),
                     View<const std::int64_t>(every_row.data(), {1}),
                     buffer.index.view_as<std::int32_t>().slice(piece.begin, piece.end),
                     buffer.count.view_as<std::int32_t>().slice(piece.begin, piece.end),
                     select_workspace(indexer, piece.end), options.threads);
  }

  void match(SelectionMatcher& matcher, OwnSelection& own) const {
    const Piece& piece = step_.pieces().front();
    std::vector<float> scores(static_cast<std::size_t>(piece.end));
    for (std::int64_t position = piece.begin; position < piece.end; ++position) {
      const std::int64_t seen =
          score_row(*layer_.config().indexer, layer_.compute(), index_cache_, queries_, step_.requests(), 0,
                    position - piece.begin, View<float>(scores.data(), {piece.end}));
      own.agrees.push_back(matcher.add_row(position, std::span(scores).first(static_cast<std::size_t>(seen)),
                                           row_of(recorded_.topk_indices, position),
                                           row_of(own.buffer.index, position)));
    }
  }

 private:
  const Layer& layer_;
  const RecordedLayer& recorded_;
  const Step& step_;
  CacheView index_cache_;
  IndexQueries queries_;
};

}  // namespace

const RecordedLayer* find_layer(const std::vector<RecordedLayer>& recording, std::int64_t layer) {
  const auto found = std::find_if(recording.begin(), recording.end(),
                                  [&](const RecordedLayer& recorded) { return recorded.layer == layer; });
  return found == recording.end() ? nullptr : &*found;
}

void require_width(const RecordedLayer& recorded, const ModelConfig& config) {
  if (recorded.hidden_states.dim(1) != config.hidden_size) {
    throw Error(fmt::format("layers.{}.hidden_states", recorded.layer),
                fmt::format("rows of hidden_size, {}", config.hidden_size),
                fmt::format("rows of {}", recorded.hidden_states.dim(1)));
  }
}

Tensor hidden_states(const RecordedLayer& recorded, const ModelConfig& config, DType compute) {
  require_width(recorded, config);
  const View<const float> source = recorded.hidden_states.view_as<float>();
  Tensor hidden(compute, {source.dim(0), source.dim(1)});
  if (compute == DType::float32) {
    std::copy_n(source.data(), source.size(), hidden.view_as<float>().data());
  } else {
    std::transform(source.data(), source.data() + source.size(), hidden.view_as<bfloat16>().data(),
                   [](float value) { return bfloat16(value); });
  }
  return hidden;
}

OwnSelection select_and_match(const Layer& layer, const RecordedLayer& recorded, const Options& options) {
  const IndexerGeometry& indexer = *layer.config().indexer;
  const Tensor hidden = hidden_states(recorded, layer.config(), layer.compute());
  const std::vector<RequestSpec> batch{{hidden.dim(0), 0}};
  const PageTable table(batch, options.seed);
  CacheMemory index_cache(table, indexer.cache_row_bytes(layer.compute()));
  CacheMemory latent_cache(table, cache_row_bytes(options.format(), layer.config().geometry));
  OwnSelection own;
  own.buffer = {Tensor(DType::int32, {hidden.dim(0), indexer.rule().width()}), Tensor(DType::int32, {hidden.dim(0)})};
  SelectionMatcher matcher(indexer);
  for (std::int64_t s = 0; s < query_steps(batch, options.prefill_chunk); ++s) {
    const Step step(table, query_pieces(batch, options.prefill_chunk, s));
    const Piece& piece = step.pieces().front();
    const Projected projected = layer.project(hidden.view().slice(piece.begin, piece.end), step.positions());
    layer.append(projected, {latent_cache.view(), index_cache.view()}, options.format(), step.requests(), step.slots());
    const SelectStep select_step(layer, recorded, step, index_cache.view(), projected);
    select_step.select(own.buffer, options);
    select_step.match(matcher, own);
  }
  own.match = matcher.share();
  own.ties = matcher.ties();
  return own;
}

}  // namespace headrace::app
