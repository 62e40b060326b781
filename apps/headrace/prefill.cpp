// SPDX-License-Identifier: Apache-2.0
#include "prefill.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "headrace/attention.h"
#include "memory.h"
#include "plan_text.h"
#include "prefill_memory.h"
#include "progress.h"
#include "step.h"
#include "step_selection.h"
#include "stopwatch.h"

namespace headrace::app {
namespace {

/// Plans every step, to find out whether that can be done and the most workspace a step needs.
PrefillStart plan_all(const Attention& attention, const Options& options, const Profile& profile) {
  PrefillStart start;
  start.attention = attention;
  start.steps = query_steps(options.batch, options.prefill_chunk);
  for (std::int64_t s = 0; s < start.steps; ++s) {
    std::vector<RequestSpec> requests;
    for (const Piece& piece : query_pieces(options.batch, options.prefill_chunk, s)) {
      requests.push_back({piece.size(), piece.begin});
    }
    const BatchLengths lengths(requests);
    Plan plan = plan_step(attention, lengths.view(), options, profile);
    start.workspace_bytes = std::max(start.workspace_bytes, plan.workspace_bytes());
    if (s == 0) {
      start.first_plan = std::move(plan);
    }
  }
  return start;
}

class Prefill {
 public:
  Prefill(const ModelSource& model, std::int64_t number, const Options& options, PrefillStart start, Profile profile)
      : options_(options),
        profile_(std::move(profile)),
        number_(number),
        layer_(model.config, number, model.weights(number, options.compute, options.seed), options.compute,
               options.threads),
        table_(options.batch, options.seed),
        latent_cache_(table_, cache_row_bytes(start.attention.format, start.attention.geometry)),
        selection_(make_step_selection(model, layer_, number, table_, options)),
        workspace_(DType::uint8, {start.workspace_bytes}) {
    if (layer_.scores()) {
      index_cache_ = CacheMemory(table_, model.config.indexer->cache_row_bytes(options.compute));
    }
    report_.attention = start.attention;
    report_.steps = start.steps;
    report_.workspace_bytes = start.workspace_bytes;
    report_.first_plan = std::move(start.first_plan);
    if (options.check != Check::none) {
      report_.check.emplace(check_tolerance(options.compute),
                            rows_to_check(options.batch, report_.attention.rule, options, options.check));
    }
  }

  PrefillReport run() {
    timed(report_.context_ms, [&] { make_context(); });
    Progress progress("prefill", query_tokens(options_.batch));
    for (std::int64_t s = 0; s < report_.steps; ++s) {
      const Step step(table_, query_pieces(options_.batch, options_.prefill_chunk, s));
      run_step(step);
      progress.advance(step.tokens());
    }
    return std::move(report_);
  }

 private:
  LayerCaches caches() { return {latent_cache_.view(), layer_.scores() ? index_cache_.view() : MutableCacheView()}; }

  [[nodiscard]] Tensor hidden_states(const Step& step) const {
    return random_hidden(step, layer_.config().hidden_size, options_.compute, options_.seed, number_, options_.threads);
  }

  void make_context() {
    std::int64_t tokens = 0;
    for (const RequestSpec& request : options_.batch) {
      tokens += request.context_len;
    }
    Progress progress("context", tokens);
    for (std::vector<Piece>& pieces : context_steps(options_.batch, kContextTokensAtOnce)) {
      const Step step(table_, std::move(pieces));
      const Tensor hidden = hidden_states(step);
      layer_.append(layer_.project_keys(hidden.view(), step.positions()), caches(), report_.attention.format,
                    step.requests(), step.slots());
      selection_->add_context(step);
      progress.advance(step.tokens());
    }
  }

  void run_step(const Step& step) {
    StageTimes& stages = report_.stages;
    Plan plan = timed(stages.plan, [&] { return plan_step(report_.attention, step.batch(), options_, profile_); });
    selection_->prepare(step, plan);
    Projected projected = project(step, plan);
    timed(stages.append,
          [&] { layer_.append(projected, caches(), report_.attention.format, step.requests(), step.slots()); });
    const Selection selection =
        timed(stages.select, [&] { return selection_->select(step, plan, projected, caches().index); });
    Tensor q = std::move(projected.q);
    projected = {};  // everything but the queries has been used

    const Geometry& g = report_.attention.geometry;
    Tensor attended(options_.compute, {step.tokens(), g.num_heads, g.v_head_dim});
    Tensor lse;
    if (report_.check) {
      lse = Tensor(DType::float32, {step.tokens(), g.num_heads});
    }
    const View<float> lse_view = lse.empty() ? View<float>() : lse.view_as<float>();
    const Inputs inputs{q.view(), latent_cache_.view(), step.requests(), selection};
    timed(stages.attend, [&] {
      attend(plan, layer_.attention_weights(), inputs, {attended.view(), lse_view},
             {workspace_.data(), static_cast<std::size_t>(plan.workspace_bytes())});
    });
    if (report_.check) {
      report_.check->add(report_.attention, layer_.attention_weights(), inputs, step, attended.view(), lse_view,
                         options_.threads);
    }
    q = {};
    const Tensor output = timed(stages.output, [&] { return layer_.output(attended.view()); });
    keep(std::move(plan));
  }

  Projected project(const Step& step, const Plan& plan) {
    const Tensor hidden = hidden_states(step);
    const bool scoring = options_.selection.kind == SelectionSource::Kind::indexer &&
                         std::any_of(plan.requests().begin(), plan.requests().end(),
                                     [](const RequestPlan& request) { return !request.skip_scoring; });
    return timed(report_.stages.project, [&] { return layer_.project(hidden.view(), step.positions(), scoring); });
  }

  void keep(Plan plan) {
    const std::array<std::int64_t, 3> tokens = tokens_by_path(plan);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      report_.tokens[i] += tokens[i];
    }
    report_.last_plan = std::move(plan);
  }

  const Options& options_;
  Profile profile_;
  std::int64_t number_;
  Layer layer_;
  PageTable table_;
  CacheMemory latent_cache_;
  CacheMemory index_cache_;
  std::unique_ptr<StepSelection> selection_;
  Tensor workspace_;
  PrefillReport report_;
};

}  // namespace

PrefillReport prefill(const ModelSource& model, std::int64_t layer, const Options& options,
                      const std::function<void(const PrefillStart&)>& on_start) {
  require_step_selection(model.config, options);
  const Attention attention = attention_of(model.config, layer, options);
  // What does not depend on the plan first: planning has a cost of its own.
  MemoryEstimate estimate = prefill_memory(model, layer, attention, options);
  estimate.require(kMemoryOptions);
  const Profile profile = chosen_profile(options);
  PrefillStart start = plan_all(attention, options, profile);
  estimate.add(1, start.workspace_bytes);
  estimate.require(kMemoryOptions);
  on_start(start);
  return Prefill(model, layer, options, std::move(start), profile).run();
}

}  // namespace headrace::app
