// SPDX-License-Identifier: Apache-2.0
#include "reference_layer.h"

#include <utility>
#include <vector>

#include "headrace/layer.h"
#include "recorded_selection.h"
#include "step.h"

namespace headrace::app {

ReferenceLayer run_reference(const ModelSource& model, const RecordedLayer& recorded, const Selection& selection,
                             DType compute, const Options& options) {
  const Layer layer(model.config, recorded.layer, model.weights(recorded.layer, compute, options.seed), compute,
                    options.threads);
  const Tensor hidden = hidden_states(recorded, model.config, compute);
  const std::vector<RequestSpec> batch{{hidden.dim(0), 0}};
  const PageTable table(batch, options.seed);
  const Step step(table, query_pieces(batch, 0, 0));
  const CacheFormat format = compute == DType::float32 ? CacheFormat::float32 : CacheFormat::bfloat16;
  CacheMemory cache(table, cache_row_bytes(format, model.config.geometry));

  Projected projected = layer.project(hidden.view(), step.positions(), /*scoring=*/false);
  headrace::append(model.config.geometry, format, cache.view(), std::as_const(projected.latent).view(),
                   std::as_const(projected.rope_key).view(), step.slots(), options.threads);
  Limits limits;
  limits.device.threads = options.threads;
  const Plan plan = headrace::plan(layer.attention(format), step.batch(), limits);
  Tensor workspace(DType::uint8, {plan.workspace_bytes()});
  Tensor attended(compute, {hidden.dim(0), model.config.geometry.num_heads, model.config.geometry.v_head_dim});
  attend(plan, layer.attention_weights(), {std::as_const(projected.q).view(), cache.view(), step.requests(), selection},
         {attended.view(), {}}, {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())});

  ReferenceLayer result;
  result.output = layer.output(std::as_const(attended).view());
  const Tensor& o_proj = layer.weights().o_proj;
  result.o_proj = Tensor(compute, {o_proj.dim(0), o_proj.dim(1)});
  std::copy_n(o_proj.data(), o_proj.size_bytes(), result.o_proj.data());
  result.q = std::move(projected.q);
  result.latent = std::move(projected.latent);
  result.rope_key = std::move(projected.rope_key);
  return result;
}

}  // namespace headrace::app
