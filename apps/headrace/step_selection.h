// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "headrace/plan.h"
#include "model_source.h"
#include "options.h"
#include "stages.h"
#include "step.h"

namespace headrace::app {

/// Where prefill's selections come from. A selection is part of a step's time only where the layer makes it itself.
class StepSelection {
 public:
  virtual ~StepSelection() = default;
  /// Takes part in a step of context, before any select().
  virtual void add_context(const Step& step) = 0;
  /// What has to be done before the step and is not part of its time.
  virtual void prepare(const Step& step, const Plan& plan) = 0;
  /// Gives the step its selection. @param select_ms  gets what the layer's own indexer takes
  virtual void select(const Step& step, const Plan& plan, Stages& stages, double& select_ms) = 0;
};

/// The layer's own indexer, the indexer of the layer whose selection it shares, a generator, or none at all.
[[nodiscard]] std::unique_ptr<StepSelection> make_step_selection(const ModelSource& model, const Stages& stages,
                                                                 std::int64_t number, const PageTable& table,
                                                                 const Options& options, const Device& device);

/// @throws Error for a --selection that prefill cannot run: a recorded one, or one of a model without a selection
void require_step_selection(const ModelConfig& config, const Options& options);

/// The generator with the model's topk. @throws Error for a model without a selection
[[nodiscard]] selection::Generator model_generator(const ModelConfig& config, const Options& options);

/// Bytes that `select` may use for scores.
[[nodiscard]] std::int64_t select_workspace(const IndexerGeometry& indexer, std::int64_t longest_seq_len);

}  // namespace headrace::app
