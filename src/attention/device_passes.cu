// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "attention/device_passes.h"
#include "attention/paths/cuda_path.h"
#include "attention/segments.h"
#include "device/cuda/device.h"

namespace headrace::attention {
namespace {

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

}  // namespace

const MhaSm90& mha_path(bool masked) {
  static const MhaSm90 dense(false);
  static const MhaSm90 with_masks(true);
  return masked ? with_masks : dense;
}

const MqaSm90& mqa_path() {
  static const MqaSm90 mqa;
  return mqa;
}

const PathAlgorithm& cuda_path(Path path) {
  if (path == Path::topk_mqa) {
    return mqa_path();
  }
  return mha_path(path == Path::masked_mha);
}

std::int64_t prepare_device(CudaDevice& device, const Geometry& geometry) {
  return device.state().prepare(geometry).workspace_bytes();
}

std::int64_t plan_device_passes(const Plan& plan, const PathExtents& extents, std::shared_ptr<DevicePasses>& passes) {
  const cuda::Projections* projections = passes == nullptr ? nullptr : passes->projections;
  if (passes == nullptr || passes.use_count() > 1) {
    passes = std::make_shared<DevicePasses>();  // a copy of the plan keeps the others
  } else {
    // Whoever had them until now, perhaps in another thread, is done with reading.
    std::atomic_thread_fence(std::memory_order_acquire);
  }
  // Asked for once a plan: another thread that warms a geometry up holds the device's lock for as long.
  passes->projections =
      projections != nullptr ? projections : &plan.device().cuda->state().prepare(plan.attention().geometry);
  collect_rows(plan, passes->rows);
  for (const bool masked : {false, true}) {
    const auto path = static_cast<std::size_t>(masked ? Path::masked_mha : Path::dense_mha);
    auto& [path_extents, tables] = passes->mha[masked ? 1 : 0];
    path_extents = extents[path];
    mha_path(masked).plan_passes(plan, passes->rows[path], tables.passes);
  }
  auto& [mqa_extents, tables] = passes->mqa;
  mqa_extents = extents[static_cast<std::size_t>(Path::topk_mqa)];
  MqaSm90::plan_passes(plan, passes->rows[static_cast<std::size_t>(Path::topk_mqa)], tables.passes);
  tables.tokens = 0;
  for (const RequestPlan& request : plan.requests()) {
    tables.tokens += request.query_len;
  }
  std::int64_t bytes = 0;
  for_each_table(*passes, [&]<class T>(const std::vector<T>& values, TableAt<T>& at) {
    at.offset = bytes;
    bytes += table_bytes<T>(static_cast<std::int64_t>(values.size()));
  });
  return bytes;
}

}  // namespace headrace::attention
