// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "attention/arena.h"
#include "attention/mha/sm90.h"
#include "attention/paths/cuda_path.h"
#include "attention/paths/mha_sm90.h"
#include "attention/paths/mqa_sm90.h"
#include "attention/segments.h"
#include "device/cuda/device.h"
#include "device/cuda/memory.h"
#include "headrace/cuda.h"
#include "headrace/error.h"

namespace headrace {
namespace attention {

/// The passes of every path and their tables on the GPU.
struct DevicePasses {
  template <class Tables>
  struct OfPath {
    Extents extents;
    Tables tables;
  };
  std::array<OfPath<MhaTables>, 2> mha;  ///< dense_mha, masked_mha
  OfPath<MqaTables> mqa;
  std::array<std::vector<RowsOnPath>, 3> rows;  ///< what they were made from; kept for its memory
  device::cuda::DeviceBuffer memory;
};

namespace {

const MhaSm90& mha_path(bool masked) {
  static const MhaSm90 dense(false);
  static const MhaSm90 with_masks(true);
  return masked ? with_masks : dense;
}

const MqaSm90& mqa_path() {
  static const MqaSm90 mqa;
  return mqa;
}

/// The plan's rows on each path.
void collect_rows(const Plan& plan, std::array<std::vector<RowsOnPath>, 3>& rows) {
  for (std::vector<RowsOnPath>& of_path : rows) {
    of_path.clear();
  }
  for (const RequestPlan& request : plan.requests()) {
    for (std::size_t s = 0; s < request.segments.size(); ++s) {
      const Segment& segment = request.segments[s];
      // Shorter lengths, of this call or after a refresh, move rows towards the start and any of them into this
      // segment; the first one also takes those below it.
      RowsOnPath some{.request = request.request, .begin = s == 0 ? 0 : segment.begin, .end = segment.end};
      some.row_count = most_rows(request, s);
      some.first_position = s == 0 ? std::min(segment.begin, segment.end - some.row_count) : segment.begin;
      some.causal = plan.attention().space == SelectionSpace::request_position;
      some.keys = most_keys(plan.attention(), plan.device(), segment.end, request.context_len + request.query_len);
      rows[static_cast<std::size_t>(segment.path)].push_back(some);
    }
  }
}

/// Arrays one after the other in one buffer.
class TableBytes {
 public:
  /// Where the array begins.
  template <class T>
  std::int64_t add(const std::vector<T>& values) {
    bytes_.resize((bytes_.size() + 15) / 16 * 16);
    const auto at = static_cast<std::int64_t>(bytes_.size());
    const auto raw = std::as_bytes(std::span(values));
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
    return at;
  }
  [[nodiscard]] device::cuda::DeviceBuffer upload() const {
    device::cuda::DeviceBuffer buffer(static_cast<std::int64_t>(std::max<std::size_t>(bytes_.size(), 1)));
    buffer.upload(bytes_);
    return buffer;
  }

 private:
  std::vector<std::byte> bytes_;
};

/// Hands the arrays of all paths to `table`, in one order: first to lay them out, then to say where they are.
template <class Table>
void for_each_table(DevicePasses& passes, const Table& table) {
  for (auto& [extents, of] : passes.mha) {
    table(of.passes.runs, of.runs);
    table(of.passes.spans, of.spans);
    table(of.passes.tiles, of.tiles);
  }
  MqaTables& mqa = passes.mqa.tables;
  table(mqa.passes.rows, mqa.rows);
  table(mqa.passes.tiles, mqa.tiles);
  table(mqa.passes.runs, mqa.runs);
  table(mqa.passes.first_rows, mqa.first_rows);
}

void upload_tables(DevicePasses& passes) {
  TableBytes bytes;
  std::vector<std::int64_t> begins;
  for_each_table(passes, [&](const auto& values, auto& /*to*/) { begins.push_back(bytes.add(values)); });
  passes.memory = bytes.upload();
  auto begin = begins.begin();
  for_each_table(passes, [&]<class T>(const std::vector<T>& /*values*/, const T*& to) {
    to = reinterpret_cast<const T*>(passes.memory.data() + *begin++);
  });
}

}  // namespace

const PathAlgorithm& cuda_path(Path path) {
  if (path == Path::topk_mqa) {
    return mqa_path();
  }
  return mha_path(path == Path::masked_mha);
}

void plan_device_passes(const Plan& plan, const PathExtents& extents, std::shared_ptr<DevicePasses>& passes) {
  CudaDevice::State& device = plan.device().cuda->state();
  device::cuda::make_current(device.ordinal);
  static_cast<void>(device.projections(plan.attention().geometry));

  if (passes == nullptr || passes.use_count() > 1) {
    passes = std::make_shared<DevicePasses>();  // a copy of the plan keeps the others
  }
  collect_rows(plan, passes->rows);
  for (const bool masked : {false, true}) {
    const Path path = masked ? Path::masked_mha : Path::dense_mha;
    const std::vector<RowsOnPath>& rows = passes->rows[static_cast<std::size_t>(path)];
    auto& [path_extents, tables] = passes->mha[masked ? 1 : 0];
    path_extents = extents[static_cast<std::size_t>(path)];
    mha_path(masked).plan_passes(plan, rows, tables.passes);
    if (!rows.empty()) {
      mha::sm90::load(plan.attention().geometry);
    }
  }
  std::vector<RowsOnPath>& rows = passes->rows[static_cast<std::size_t>(Path::topk_mqa)];
  auto& [mqa_extents, tables] = passes->mqa;
  mqa_extents = extents[static_cast<std::size_t>(Path::topk_mqa)];
  MqaSm90::plan_passes(plan, rows, tables.passes);
  tables.tokens = 0;
  for (const RequestPlan& request : plan.requests()) {
    tables.tokens += request.query_len;
  }
  if (!rows.empty()) {
    MqaSm90::load();
  }
  upload_tables(*passes);
}

}  // namespace attention

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
  contiguous("query_start", inputs.requests.query_start.stride(0));
  contiguous("seq_len", inputs.requests.seq_len.stride(0));
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

/// A path's workspace: what each path keeps lies in front, in their order, and what they take in turns behind it.
attention::PathArenas arenas_of(const Plan& plan, Path path, std::span<std::byte> workspace) {
  attention::PathArenas arenas;
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

}  // namespace

void attend(const Plan& plan, const Weights& weights, const Inputs& inputs, const Outputs& outputs,
            std::span<std::byte> workspace, Stream stream) {
  if (plan.device_passes() == nullptr) {
    throw Error("plan", "a plan for a GPU (Limits.device.cuda)", "one for the processor");
  }
  validate(plan, weights, inputs, outputs);
  if (static_cast<std::int64_t>(workspace.size()) < plan.workspace_bytes()) {
    throw Error("workspace", "at least " + std::to_string(plan.workspace_bytes()) + " bytes",
                std::to_string(workspace.size()));
  }
  constexpr std::uintptr_t kAlignment = 256;
  if (reinterpret_cast<std::uintptr_t>(workspace.data()) % kAlignment != 0) {
    throw Error("workspace", "an address divisible by 256", "another");
  }
  if (inputs.q.dim(0) == 0) {
    return;
  }
  const attention::Call call{plan, weights, inputs, outputs};
  const attention::DevicePasses& passes = *plan.device_passes();
  const bool has_mqa = !passes.mqa.tables.passes.stages.empty();
  if (has_mqa) {
    attention::MqaSm90::validate(call, passes.mqa.tables.tokens);
  }
  for (const bool masked : {false, true}) {
    const auto& [extents, tables] = passes.mha[masked ? 1 : 0];
    if (!tables.passes.passes.empty()) {
      const Path path = masked ? Path::masked_mha : Path::dense_mha;
      attention::mha_path(masked).run(call, extents, tables, arenas_of(plan, path, workspace), stream);
    }
  }
  const auto& [extents, tables] = passes.mqa;
  if (has_mqa) {
    attention::mqa_path().run(call, extents, tables, arenas_of(plan, Path::topk_mqa, workspace), stream);
  }
}

}  // namespace headrace
