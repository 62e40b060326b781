// SPDX-License-Identifier: Apache-2.0
#include "recorded_selection.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>

#include "headrace/error.h"
#include "step.h"

namespace headrace::app {
namespace {

std::span<const std::int32_t> row_of(const Tensor& index, std::int64_t row) {
  const View<const std::int32_t> view = index.view_as<std::int32_t>();
  return {view.at(row), static_cast<std::size_t>(view.dim(1))};
}

/// Copies rows of a selection to rows [first, ...) of a buffer.
void keep_rows(const Selection& selection, std::int64_t first, SelectionBuffer& buffer) {
  const View<std::int32_t> index = buffer.index.view_as<std::int32_t>();
  const View<std::int32_t> count = buffer.count.view_as<std::int32_t>();
  std::copy_n(selection.index.data(), selection.index.size(), index.at(first));
  std::copy_n(selection.count.data(), selection.count.size(), count.at(first));
}

/// Matches the rows of one step with the recorded ones, by our own scores.
void match(const ScoredStep& scored, const Step& step, const IndexerGeometry& indexer,
           const RecordedSelection& recorded, DType compute, const OwnSelection& own, SelectionMatcher& matcher) {
  const Piece& piece = step.pieces().front();
  std::vector<float> scores(static_cast<std::size_t>(piece.end));
  for (std::int64_t position = piece.begin; position < piece.end; ++position) {
    const std::int64_t seen = score_row(indexer, compute, scored.index_cache, scored.queries, step.requests(), 0,
                                        position - piece.begin, View<float>(scores.data(), {piece.end}));
    (void)matcher.add_row(position, std::span(scores).first(static_cast<std::size_t>(seen)),
                          row_of(recorded.index, position), row_of(own.buffer.index, position));
  }
}

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

void NotedRows::add(std::int64_t row) {
  if (rows++ == 0) {
    first = row;
  }
}

RecordedSelection read_selection(const Tensor& topk_indices, const SelectionRule& rule) {
  const std::int64_t rows = topk_indices.dim(0);
  std::vector<std::vector<std::int32_t>> keys;
  RecordedSelection result;
  std::int64_t width = rule.width();
  for (std::int64_t row = 0; row < rows; ++row) {
    keys.push_back(keys_in(row_of(topk_indices, row), row));
    const auto selected = static_cast<std::int64_t>(keys.back().size());
    width = std::max(width, selected);
    if (selected > rule.keys_at(row)) {
      result.wide.add(row);
    }
  }
  result.index = Tensor(DType::int32, {rows, width});
  const View<std::int32_t> index = result.index.view_as<std::int32_t>();
  std::fill_n(index.data(), index.size(), -1);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy(keys[static_cast<std::size_t>(row)].begin(), keys[static_cast<std::size_t>(row)].end(), index.at(row));
  }
  return result;
}

std::vector<bool> rows_that_agree(const Tensor& one, const Tensor& other) {
  std::vector<bool> agree;
  for (std::int64_t row = 0; row < one.dim(0); ++row) {
    agree.push_back(keys_in(row_of(one, row), row) == keys_in(row_of(other, row), row));
  }
  return agree;
}

OwnSelection select_and_match(Stages& stages, const RecordedLayer& recorded, const RecordedSelection& selection,
                              const Options& options) {
  const IndexerGeometry& indexer = *stages.config().indexer;
  const Tensor hidden = hidden_states(recorded, stages.config(), options.compute);
  const std::vector<RequestSpec> batch{{hidden.dim(0), 0}};
  const PageTable table(batch, options.seed);
  stages.begin(table, options.format(), 0);
  OwnSelection own;
  own.buffer = {Tensor(DType::int32, {hidden.dim(0), indexer.rule().width()}), Tensor(DType::int32, {hidden.dim(0)})};
  SelectionMatcher matcher(indexer);
  for (std::int64_t s = 0; s < query_steps(batch, options.prefill_chunk); ++s) {
    const Step step(table, query_pieces(batch, options.prefill_chunk, s));
    const Piece& piece = step.pieces().front();
    stages.open(step, hidden.view().slice(piece.begin, piece.end));
    stages.project(/*scoring=*/true);
    stages.append();
    stages.select_all();
    const ScoredStep scored = stages.scored();
    keep_rows(scored.selection, piece.begin, own.buffer);
    match(scored, step, indexer, selection, options.compute, own, matcher);
    stages.close();
  }
  own.match = matcher.result();
  return own;
}

}  // namespace headrace::app
