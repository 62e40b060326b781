// SPDX-License-Identifier: Apache-2.0
#include "step_selection.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "headrace/error.h"

namespace headrace::app {
namespace {

constexpr std::int64_t kSelectWorkspace = std::int64_t{64} << 20;

class NoSelection final : public StepSelection {
 public:
  void add_context(const Step&) override {}
  void prepare(const Step&, const Plan&) override {}
  void select(const Step&, const Plan&, Stages&, double&) override {}
};

class OwnIndexer final : public StepSelection {
 public:
  void add_context(const Step&) override {}  // the layer appends its own index keys
  void prepare(const Step&, const Plan&) override {}
  void select(const Step&, const Plan& plan, Stages& stages, double& select_ms) override {
    stages.time(select_ms, [&] { stages.select(plan); });
  }
};

/// The indexer of an earlier layer, over hidden states of its own.
class SharedIndexer final : public StepSelection {
 public:
  SharedIndexer(const ModelSource& model, std::int64_t source, const PageTable& table, const Options& options,
                const Device& device)
      : source_(source), options_(options), stages_(make_stages(model, source, options, device)) {
    stages_->begin(table, options.format(), 0);
  }

  void add_context(const Step& step) override {
    const Tensor hidden = hidden_states(step);
    stages_->open(step, hidden.view());
    stages_->project_keys();
    stages_->append();
    stages_->close();
  }

  void prepare(const Step& step, const Plan& plan) override {
    const Tensor hidden = hidden_states(step);
    stages_->open(step, hidden.view());
    stages_->project(/*scoring=*/true);
    stages_->append();
    stages_->select(plan);
    stages_->close();
  }

  void select(const Step&, const Plan&, Stages& stages, double&) override { stages.share(stages_->selection()); }

 private:
  [[nodiscard]] Tensor hidden_states(const Step& step) const {
    return random_hidden(step, stages_->config().hidden_size, options_.compute, options_.seed, source_,
                         options_.threads);
  }

  std::int64_t source_;
  const Options& options_;
  std::unique_ptr<Stages> stages_;
};

/// Rows of a generator, made once for the whole batch: what a token selects does not depend on its step.
class Generated final : public StepSelection {
 public:
  Generated(const selection::Generator& generator, const std::vector<RequestSpec>& batch)
      : whole_(make(generator, query_tokens(batch))) {
    std::int64_t first = 0;
    for (std::size_t b = 0; b < batch.size(); ++b) {
      const std::int64_t end = first + batch[b].query_len;
      generator.fill(static_cast<std::int64_t>(b), batch[b].context_len,
                     whole_.index.view_as<std::int32_t>().slice(first, end),
                     whole_.count.view_as<std::int32_t>().slice(first, end));
      first_row_.push_back(first - batch[b].context_len);
      first = end;
    }
  }

  void add_context(const Step&) override {}

  void prepare(const Step& step, const Plan&) override {
    if (step.tokens() == whole_.count.dim(0)) {
      return;
    }
    SelectionBuffer buffer = {Tensor(DType::int32, {step.tokens(), whole_.index.dim(1)}),
                              Tensor(DType::int32, {step.tokens()})};
    std::int64_t row = 0;
    for (const Piece& piece : step.pieces()) {
      const std::int64_t from = first_row_[static_cast<std::size_t>(piece.request)] + piece.begin;
      copy_rows(whole_.index, from, piece.size(), buffer.index, row);
      copy_rows(whole_.count, from, piece.size(), buffer.count, row);
      row += piece.size();
    }
    buffer_ = std::move(buffer);
  }

  void select(const Step& step, const Plan&, Stages& stages, double&) override {
    stages.use(step.tokens() == whole_.count.dim(0) ? whole_.selection() : buffer_.selection());
  }

 private:
  static SelectionBuffer make(const selection::Generator& generator, std::int64_t tokens) {
    return {Tensor(DType::int32, {tokens, generator.width()}), Tensor(DType::int32, {tokens})};
  }

  static void copy_rows(const Tensor& source, std::int64_t from, std::int64_t rows, Tensor& target, std::int64_t to) {
    const std::int64_t row_bytes = size_of(source.dtype()) * (source.rank() == 2 ? source.dim(1) : 1);
    std::copy_n(source.data() + from * row_bytes, rows * row_bytes, target.data() + to * row_bytes);
  }

  SelectionBuffer whole_;
  std::vector<std::int64_t> first_row_;  ///< the row that the request's position 0 would have
  SelectionBuffer buffer_;
};

}  // namespace

void require_step_selection(const ModelConfig& config, const Options& options) {
  if (options.selection.kind == SelectionSource::Kind::recorded) {
    throw Error("--selection", fmt::format("{} (verify takes recorded ones)", kStepSelections), "\"recorded\"");
  }
  if (options.selection.kind == SelectionSource::Kind::generator) {
    (void)model_generator(config, options);
  }
}

selection::Generator model_generator(const ModelConfig& config, const Options& options) {
  if (!config.indexer) {
    throw Error("--selection", "indexer, for the model's layers attend to every key",
                "\"" + options.selection.text + "\"");
  }
  selection::Generator generator = options.selection.generator;
  generator.topk = config.indexer->topk;
  if (generator.kind == selection::Generator::Kind::pooled && generator.pool > generator.topk) {
    throw Error("--selection", fmt::format("a pool of at most the {} keys that the model selects", generator.topk),
                fmt::format("{}", generator.pool));
  }
  generator.seed = options.seed;
  return generator;
}

std::int64_t select_workspace(const IndexerGeometry& indexer, std::int64_t longest_seq_len) {
  return std::max(kSelectWorkspace, select_workspace_minimum(indexer, longest_seq_len));
}

std::unique_ptr<StepSelection> make_step_selection(const ModelSource& model, const Stages& stages, std::int64_t number,
                                                   const PageTable& table, const Options& options,
                                                   const Device& device) {
  if (options.selection.kind == SelectionSource::Kind::generator) {
    return std::make_unique<Generated>(model_generator(model.config, options), options.batch);
  }
  if (stages.scores()) {
    return std::make_unique<OwnIndexer>();
  }
  if (model.config.selection_rule(number).kind() == SelectionRule::Kind::none) {
    return std::make_unique<NoSelection>();
  }
  return std::make_unique<SharedIndexer>(model, model.config.selection_source(number), table, options, device);
}

}  // namespace headrace::app
