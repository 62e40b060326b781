// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "attention/device_passes.h"
#include "attention/project_cuda.h"
#include "attention/verbose_cuda.h"
#include "core/layout_text.h"
#include "device/cuda/current.h"
#include "headrace/cuda.h"
#include "headrace/error.h"

namespace headrace {
namespace {

/// What the host can check: shapes, dtypes and strides. The rest is on the GPU, where the kernels check it.
void validate(const Plan& plan, const Weights& weights, const Inputs& inputs, const Outputs& outputs) {
  const Attention& attention = plan.attention();
  const Geometry& g = attention.geometry;
  const auto contiguous = [](const char* name, std::int64_t stride) {
    if (stride != 1) {
      throw Error(name, "a contiguous last dimension", "stride " + std::to_string(stride));
    }
  };
  inputs.q.expect("q", {-1, g.num_heads, g.qk_head_dim()});
  expect_dtype("q", DType::bfloat16, inputs.q.dtype());
  contiguous("q", inputs.q.stride(2));
  weights.kv_b_proj.expect("kv_b_proj", {g.num_heads * (g.qk_nope_head_dim + g.v_head_dim), g.kv_lora_rank});
  expect_dtype("kv_b_proj", DType::bfloat16, weights.kv_b_proj.dtype());
  if (!weights.sink.empty()) {
    weights.sink.expect("sink", {g.num_heads});
    contiguous("sink", weights.sink.stride(0));
  }
  const std::int64_t tokens = inputs.q.dim(0);
  outputs.out.expect("out", {tokens, g.num_heads, g.v_head_dim});
  if (outputs.out.dtype() != DType::float32) {
    expect_dtype("out", DType::bfloat16, outputs.out.dtype());
  }
  contiguous("out", outputs.out.stride(2));
  if (!outputs.lse.empty()) {
    outputs.lse.expect("lse", {tokens, g.num_heads});
    contiguous("lse", outputs.lse.stride(1));
  }
  validate_cache(inputs.cache, attention.format, g);
  const auto requests = static_cast<std::int64_t>(plan.requests().size());
  inputs.requests.query_start.expect("query_start", {requests + 1});
  inputs.requests.seq_len.expect("seq_len", {requests});
  inputs.requests.block_table.expect("block_table", {requests, -1});
  if (inputs.selection.space != attention.space) {
    throw Error("selection.space", "the space of the plan's attention", "the other");
  }
  if (inputs.selection.index.empty()) {
    for (const RequestPlan& request : plan.requests()) {
      if (!request.skip_scoring) {
        throw Error("selection.index",
                    "a selection, for rows of request " + std::to_string(request.request) + " are not covered by " +
                        attention.rule.to_string(),
                    "none");
      }
    }
  } else {
    inputs.selection.index.expect("selection.index", {tokens, -1});
    if (!inputs.selection.count.empty()) {
      inputs.selection.count.expect("selection.count", {tokens});
    }
  }
}

/// A path's workspace: what each path keeps lies in front, in their order, behind it what they take in turns, and at
/// the end what products take.
attention::PathArenas arenas_of(const Plan& plan, Path path, std::span<std::byte> workspace,
                                std::int64_t product_bytes) {
  const auto for_paths = static_cast<std::size_t>(plan.workspace_bytes() - product_bytes);
  attention::PathArenas arenas;
  arenas.products = workspace.subspan(for_paths, static_cast<std::size_t>(product_bytes));
  workspace = workspace.first(for_paths);
  for (const Path other : kPaths) {
    const auto kept = static_cast<std::size_t>(plan.kept_bytes(other));
    if (other == path && kept > 0) {
      arenas.kept.emplace(workspace.first(kept));
    }
    workspace = workspace.subspan(kept);
  }
  arenas.scratch = attention::Arena(workspace);
  return arenas;
}

/// What the plan's paths can read and write.
void validate_for_paths(const attention::Call& call) {
  const attention::DevicePasses& passes = *call.plan.device_passes();
  for (const auto& [extents, tables] : passes.mha) {
    if (!tables.passes.passes.empty()) {
      attention::MhaSm90::validate(call);
    }
  }
  if (!passes.mqa.tables.passes.stages.empty()) {
    attention::MqaSm90::validate(call, passes.mqa.tables.tokens);
  }
}

/// Queues the work of a call, path after path.
void queue(const attention::Call& call, std::span<std::byte> workspace, Stream stream) {
  const Plan& plan = call.plan;
  const attention::DevicePasses& passes = *plan.device_passes();
  const std::int64_t product_bytes = passes.projections->workspace_bytes();
  for (const bool masked : {false, true}) {
    const auto& [extents, tables] = passes.mha[masked ? 1 : 0];
    if (!tables.passes.passes.empty()) {
      const Path path = masked ? Path::masked_mha : Path::dense_mha;
      attention::mha_path(masked).run(call, extents, tables, arenas_of(plan, path, workspace, product_bytes), stream);
    }
  }
  const auto& [extents, tables] = passes.mqa;
  if (!tables.passes.stages.empty()) {
    attention::mqa_path().run(call, extents, tables, arenas_of(plan, Path::topk_mqa, workspace, product_bytes), stream);
  }
}

}  // namespace

void attend(const Plan& plan, const Weights& weights, const Inputs& inputs, const Outputs& outputs,
            std::span<std::byte> workspace, Stream stream) {
  if (plan.device_passes() == nullptr) {
    throw Error("plan", "a plan for a GPU (Limits.device.cuda)", "one for the processor");
  }
  if (!plan.has_tables()) {
    throw Error("plan", "one whose tables were uploaded since it was made (headrace::upload)", "one without tables");
  }
  validate(plan, weights, inputs, outputs);
  if (static_cast<std::int64_t>(workspace.size()) < plan.workspace_bytes()) {
    throw Error("workspace", "at least " + std::to_string(plan.workspace_bytes()) + " bytes",
                std::to_string(workspace.size()));
  }
  constexpr std::uintptr_t kAlignment = 256;
  if (reinterpret_cast<std::uintptr_t>(workspace.data()) % kAlignment != 0) {
    throw Error("workspace", "an address divisible by 256", layout_text(workspace.data(), kAlignment));
  }
  const attention::Call call{plan, weights, inputs, outputs};
  const bool has_tokens = inputs.q.dim(0) > 0;
  if (has_tokens) {
    validate_for_paths(call);
  }
  const device::cuda::CurrentDevice current(plan.device().cuda->ordinal());
  attention::VerboseCudaCall verbose(plan, inputs.q.dim(0), stream);
  if (has_tokens) {
    queue(call, workspace, stream);
  }
  verbose.finish();
}

}  // namespace headrace
