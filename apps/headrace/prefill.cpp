// SPDX-License-Identifier: Apache-2.0
#include "prefill.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "memory.h"
#include "plan_text.h"
#include "prefill_memory.h"
#include "progress.h"
#include "stages.h"
#include "step.h"
#include "step_selection.h"
#include "stopwatch.h"

namespace headrace::app {
namespace {

/// Plans every step, to find out whether that can be done and the most workspace a step needs.
PrefillStart plan_all(const Attention& attention, const Options& options, const Target& target) {
  PrefillStart start;
  start.attention = attention;
  start.steps = query_steps(options.batch, options.prefill_chunk);
  for (std::int64_t s = 0; s < start.steps; ++s) {
    std::vector<RequestSpec> requests;
    for (const Piece& piece : query_pieces(options.batch, options.prefill_chunk, s)) {
      requests.push_back({piece.size(), piece.begin});
    }
    const BatchLengths lengths(requests);
    Plan plan = plan_step(attention, lengths.view(), options, target);
    start.workspace_bytes = std::max(start.workspace_bytes, plan.workspace_bytes());
    if (s == 0) {
      start.first_plan = std::move(plan);
    }
  }
  return start;
}

class Prefill {
 public:
  /// @param on_start  is called once the weights are there: bad ones are told before the plan
  Prefill(const ModelSource& model, std::int64_t number, const Options& options, PrefillStart start, Target target,
          const std::function<void(const PrefillStart&)>& on_start)
      : options_(options),
        target_(std::move(target)),
        number_(number),
        table_(options.batch, options.seed),
        stages_(make_stages(model, number, options, target_.device)),
        selection_(make_step_selection(model, *stages_, number, table_, options, target_.device)) {
    on_start(start);
    stages_->begin(table_, start.attention.format, start.workspace_bytes);
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
    stages_->time(report_.context_ms, [&] { make_context(); });
    Progress progress("prefill", query_tokens(options_.batch));
    for (std::int64_t s = 0; s < report_.steps; ++s) {
      const Step step(table_, query_pieces(options_.batch, options_.prefill_chunk, s));
      run_step(step);
      progress.advance(step.tokens());
    }
    return std::move(report_);
  }

 private:
  [[nodiscard]] Tensor hidden_states(const Step& step) const {
    return random_hidden(step, stages_->config().hidden_size, options_.compute, options_.seed, number_,
                         options_.threads);
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
      stages_->open(step, hidden.view());
      stages_->project_keys();
      stages_->append();
      stages_->close();
      selection_->add_context(step);
      progress.advance(step.tokens());
    }
  }

  void run_step(const Step& step) {
    StageTimes& times = report_.stages;
    Plan plan = timed(times.plan, [&] { return plan_step(report_.attention, step.batch(), options_, target_); });
    selection_->prepare(step, plan);
    project(step, plan);
    stages_->time(times.append, [&] { stages_->append(); });
    selection_->select(step, plan, *stages_, times.select);
    stages_->prepare(plan, report_.check.has_value());
    stages_->time(times.attend, [&] { stages_->attend(plan); });
    if (report_.check) {
      const AttendedStep attended = stages_->attended();
      report_.check->add(report_.attention, attended.weights, attended.inputs, step, attended.out, attended.lse,
                         options_.threads);
    }
    stages_->time(times.output, [&] { stages_->output(); });
    stages_->close();
    keep(std::move(plan));
  }

  void project(const Step& step, const Plan& plan) {
    const Tensor hidden = hidden_states(step);
    const bool scoring = options_.selection.kind == SelectionSource::Kind::indexer &&
                         std::any_of(plan.requests().begin(), plan.requests().end(),
                                     [](const RequestPlan& request) { return !request.skip_scoring; });
    stages_->open(step, hidden.view());
    stages_->time(report_.stages.project, [&] { stages_->project(scoring); });
  }

  void keep(Plan plan) {
    const std::array<std::int64_t, 3> tokens = tokens_by_path(plan);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      report_.tokens[i] += tokens[i];
    }
    report_.last_plan = std::move(plan);
  }

  const Options& options_;
  Target target_;
  std::int64_t number_;
  PageTable table_;
  std::unique_ptr<Stages> stages_;
  std::unique_ptr<StepSelection> selection_;
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
  Target target = chosen_target(options, [&](const Target& nominal) {
    static_cast<void>(plan_all(attention, options, nominal));
    if (model.folder) {
      static_cast<void>(model.weights(layer, options.compute, options.seed));
    }
  });
  PrefillStart start = plan_all(attention, options, target);
  if (target.device.cuda == nullptr) {
    estimate.add(1, start.workspace_bytes);
    estimate.require(kMemoryOptions);
  }
  return Prefill(model, layer, options, std::move(start), std::move(target), on_start).run();
}

}  // namespace headrace::app
