// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "headrace/attention.h"
#include "headrace/layer.h"
#include "headrace/model.h"
#include "headrace/plan.h"
#include "model_source.h"
#include "options.h"
#include "step.h"

namespace headrace::app {

/// What projections and append made of a step, in host memory.
struct AppendedStep {
  ConstAnyView q;         ///< [T, H, nope + rope]
  ConstAnyView latent;    ///< [T, R], as append got it
  ConstAnyView rope_key;  ///< [T, rope], likewise; empty for NoPE
  CacheView cache;
};

/// What attention read and gave in a step, in host memory.
struct AttendedStep {
  Weights weights;
  Inputs inputs;
  ConstAnyView out;       ///< [T, H, v]
  View<const float> lse;  ///< [T, H]
};

/// What a layer's indexer read and gave in a step, in host memory.
struct ScoredStep {
  CacheView index_cache;
  IndexQueries queries;
  Selection selection;
};

/// One layer with its caches on the device that runs it, whose stages are called one by one, step by step. The order is
/// open; project; append; one of select, select_all, use and share, unless every row is covered; prepare; attend;
/// output; close. Context needs open, project_keys and append only.
class Stages {
 public:
  Stages() = default;
  Stages(const Stages&) = delete;
  Stages& operator=(const Stages&) = delete;
  virtual ~Stages() = default;

  [[nodiscard]] virtual const ModelConfig& config() const noexcept = 0;
  /// Whether the layer has its own indexer.
  [[nodiscard]] virtual bool scores() const noexcept = 0;
  /// The layer's attention over a cache of a format, under the layer's own rule.
  [[nodiscard]] virtual Attention attention(CacheFormat format) const = 0;

  /// Begins a batch: caches for every slot of the table, with nothing in them.
  virtual void begin(const PageTable& table, CacheFormat format, std::int64_t workspace_bytes) = 0;
  /// Adds to `total_ms` what `work`, some of the stages below, takes on the device.
  virtual void time(double& total_ms, const std::function<void()>& work) = 0;

  /// Begins a step. @param hidden  [tokens, hidden] in host memory, which project and project_keys still read
  virtual void open(const Step& step, ConstAnyView hidden) = 0;
  virtual void project(bool scoring) = 0;
  virtual void project_keys() = 0;
  virtual void append() = 0;

  /// The layer's own selection, for the rows that the plan says read it, or for all of them.
  virtual void select(const Plan& plan) = 0;
  virtual void select_all() = 0;
  /// A selection in host memory, which has to outlive the step.
  virtual void use(const Selection& selection) = 0;
  /// What selection() of another layer on the same device returned; that layer has closed its step.
  virtual void share(const Selection& selection) = 0;
  /// The step's selection, in the memory of the device.
  [[nodiscard]] virtual Selection selection() const = 0;

  /// Makes what attend writes, which is not part of its time; also frees what only earlier stages needed.
  virtual void prepare(const Plan& plan, bool with_lse) = 0;
  virtual void attend(const Plan& plan) = 0;
  virtual void output() = 0;
  /// Ends a step: its work is done, and what its stages made may be freed, but for the selection.
  virtual void close() = 0;

  /// For checks: after append, between attend and output, and after select_all. Their views are valid until the next
  /// stage, attended().out until close.
  [[nodiscard]] virtual AppendedStep appended() = 0;
  [[nodiscard]] virtual AttendedStep attended() = 0;
  [[nodiscard]] virtual ScoredStep scored() = 0;
  /// [T, hidden]
  [[nodiscard]] virtual ConstAnyView out() = 0;
};

/// A layer of a model on the device of the options. @throws Error as Layer and CudaLayer do
[[nodiscard]] std::unique_ptr<Stages> make_stages(const ModelSource& model, std::int64_t layer, const Options& options,
                                                  const Device& device);

/// The longest request of a step.
[[nodiscard]] std::int64_t longest_seq_len(const Step& step);

/// For make_stages. @param weights  in bfloat16. @param cache_scale  of an fp8 cache
[[nodiscard]] std::unique_ptr<Stages> make_cuda_stages(const ModelConfig& config, std::int64_t layer,
                                                       LayerWeights weights, float cache_scale,
                                                       const std::shared_ptr<CudaDevice>& device);

}  // namespace headrace::app
