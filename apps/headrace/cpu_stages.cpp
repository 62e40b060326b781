// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "headrace/error.h"
#include "stages.h"
#include "step_selection.h"
#include "stopwatch.h"

namespace headrace::app {
namespace {

class CpuStages final : public Stages {
 public:
  CpuStages(const ModelConfig& config, std::int64_t number, LayerWeights weights, DType compute, float cache_scale,
            int threads)
      : layer_(config, number, std::move(weights), compute, threads), cache_scale_(cache_scale), threads_(threads) {}

  [[nodiscard]] const ModelConfig& config() const noexcept override { return layer_.config(); }
  [[nodiscard]] bool scores() const noexcept override { return layer_.scores(); }
  [[nodiscard]] Attention attention(CacheFormat format) const override { return layer_.attention(format); }

  void begin(const PageTable& table, CacheFormat format, std::int64_t workspace_bytes) override {
    format_ = format;
    latent_cache_ = CacheMemory(table, cache_row_bytes(format, config().geometry), cache_scale_);
    if (scores()) {
      index_cache_ = CacheMemory(table, config().indexer->cache_row_bytes(layer_.compute()));
    }
    workspace_ = Tensor(DType::uint8, {workspace_bytes});
  }

  void time(double& total_ms, const std::function<void()>& work) override { timed(total_ms, work); }

  void open(const Step& step, ConstAnyView hidden) override {
    step_ = &step;
    hidden_ = hidden;
    selected_ = {};
    selection_ = {};
  }
  void project(bool scoring) override { projected_ = layer_.project(hidden_, step_->positions(), scoring); }
  void project_keys() override { projected_ = layer_.project_keys(hidden_, step_->positions()); }
  void append() override { layer_.append(projected_, caches(), format_, step_->requests(), step_->slots()); }

  void select(const Plan& plan) override {
    selected_ = layer_.select(plan, projected_, index_cache_.view(), step_->requests(), workspace_of_select());
    selection_ = selected_.selection();
  }
  void select_all() override {
    const IndexerGeometry& indexer = *config().indexer;
    selected_ = {Tensor(DType::int32, {step_->tokens(), indexer.rule().width()}),
                 Tensor(DType::int32, {step_->tokens()})};
    headrace::select(indexer, layer_.compute(), index_cache_.view(), queries(), step_->requests(), {},
                     selected_.index.view_as<std::int32_t>(), selected_.count.view_as<std::int32_t>(),
                     workspace_of_select(), threads_);
    selection_ = selected_.selection();
  }
  void use(const Selection& selection) override { selection_ = selection; }
  void share(const Selection& selection) override { selection_ = selection; }
  [[nodiscard]] Selection selection() const override { return selection_; }

  void prepare(const Plan& plan, bool with_lse) override {
    Tensor q = std::move(projected_.q);
    projected_ = {};
    projected_.q = std::move(q);
    const Geometry& g = config().geometry;
    attended_ = Tensor(layer_.compute(), {step_->tokens(), g.num_heads, g.v_head_dim});
    lse_ = with_lse ? Tensor(DType::float32, {step_->tokens(), g.num_heads}) : Tensor();
    if (workspace_.size_bytes() < plan.workspace_bytes()) {
      workspace_ = {};
      workspace_ = Tensor(DType::uint8, {plan.workspace_bytes()});
    }
  }
  void attend(const Plan& plan) override {
    headrace::attend(plan, layer_.attention_weights(), inputs(), {attended_.view(), lse()},
                     {workspace_.data(), static_cast<std::size_t>(plan.workspace_bytes())});
  }
  void output() override {
    projected_ = {};
    output_ = layer_.output(std::as_const(attended_).view());
  }
  void close() override {
    projected_ = {};
    attended_ = {};
    lse_ = {};
    output_ = {};
  }

  [[nodiscard]] AppendedStep appended() override {
    return {std::as_const(projected_.q).view(), std::as_const(projected_.latent).view(),
            std::as_const(projected_.rope_key).view(), latent_cache_.view()};
  }
  [[nodiscard]] AttendedStep attended() override {
    return {layer_.attention_weights(), inputs(), std::as_const(attended_).view(), lse()};
  }
  [[nodiscard]] ScoredStep scored() override { return {index_cache_.view(), queries(), selection_}; }
  [[nodiscard]] ConstAnyView out() override { return std::as_const(output_).view(); }

 private:
  LayerCaches caches() { return {latent_cache_.view(), scores() ? index_cache_.view() : MutableCacheView()}; }
  [[nodiscard]] Inputs inputs() {
    return {std::as_const(projected_.q).view(), latent_cache_.view(), step_->requests(), selection_};
  }
  [[nodiscard]] IndexQueries queries() const {
    return {projected_.index_query.view(), projected_.index_weight.view_as<float>()};
  }
  [[nodiscard]] View<float> lse() { return lse_.empty() ? View<float>() : lse_.view_as<float>(); }
  [[nodiscard]] std::int64_t workspace_of_select() const {
    return scores() ? select_workspace(*config().indexer, longest_seq_len(*step_)) : 0;
  }

  Layer layer_;
  float cache_scale_;
  int threads_;
  CacheFormat format_ = CacheFormat::bfloat16;
  CacheMemory latent_cache_;
  CacheMemory index_cache_;
  Tensor workspace_;
  const Step* step_ = nullptr;
  ConstAnyView hidden_;
  Projected projected_;
  SelectionBuffer selected_;
  Selection selection_;
  Tensor attended_;
  Tensor lse_;
  Tensor output_;
};

}  // namespace

std::unique_ptr<Stages> make_stages(const ModelSource& model, std::int64_t layer, const Options& options,
                                    const Device& device) {
  LayerWeights weights = model.weights(layer, options.compute, options.seed);
  if (device.cuda != nullptr) {
    return make_cuda_stages(model.config, layer, std::move(weights), options.cache_scale, device.cuda);
  }
  return std::make_unique<CpuStages>(model.config, layer, std::move(weights), options.compute, options.cache_scale,
                                     device.threads);
}

std::int64_t longest_seq_len(const Step& step) {
  std::int64_t longest = 0;
  for (const Piece& piece : step.pieces()) {
    longest = std::max(longest, piece.end);
  }
  return longest;
}

}  // namespace headrace::app
