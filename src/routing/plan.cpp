// SPDX-License-Identifier: Apache-2.0
#include "headrace/plan.h"

#include <algorithm>
#include <iterator>

#include "attention/paths/cuda_path.h"
#include "attention/paths/path.h"
#include "headrace/cuda.h"
#include "headrace/error.h"
#include "routing/batch.h"
#include "routing/router.h"
#include "routing/workspace.h"

namespace headrace {
namespace {

/// What stays from batch to batch is checked once.
void validate(const Attention& attention, const Limits& limits, const Hints& hints) {
  attention.validate();
  if (hints.profile) {
    hints.profile->validate();
  }
  if (hints.force && std::find(std::begin(kPaths), std::end(kPaths), *hints.force) == std::end(kPaths)) {
    throw Error("force", "dense_mha, masked_mha or topk_mqa", std::to_string(static_cast<int>(*hints.force)));
  }
  routing::validate_threads(limits.device);
  if (limits.device.cuda != nullptr && !limits.device.cuda->unmet().empty()) {
    throw UnsupportedError("limits.device", "a GPU that the kernels run on", limits.device.cuda->unmet());
  }
  if (limits.workspace_bytes < 0) {
    throw Error("limits.workspace_bytes", "at least 0", std::to_string(limits.workspace_bytes));
  }
}

Profile nominal_profile(const Attention& attention, const Device& device) {
  return device.cuda != nullptr ? Profile::nominal_cuda() : Profile::nominal_cpu(attention.compute);
}

/// The same decision for another request of the same lengths.
RequestPlan with_number(RequestPlan plan, std::int64_t request) noexcept {
  plan.request = request;
  Segments segments;
  for (Segment segment : plan.segments) {
    segment.request = request;
    segments.push_back(segment);
  }
  plan.segments = segments;
  return plan;
}

}  // namespace

void Plan::remake(const Batch& batch) {
  if (attention_.geometry.num_heads == 0) {
    throw Error("plan", "one that headrace::plan has made", "an empty one");
  }
  routing::validate_batch(batch, limits_);
  const std::int64_t requests = std::ssize(batch.query_len);
  const Router router(*this, requests, batch.exact);
  next_.clear();
  for (std::int64_t request = 0; request < requests; ++request) {
    const auto b = static_cast<std::size_t>(request);
    const bool again =
        b > 0 && batch.query_len[b] == batch.query_len[b - 1] && batch.seq_len_bound[b] == batch.seq_len_bound[b - 1];
    next_.push_back(again ? with_number(next_.back(), request)
                          : router.route(request, batch.query_len[b], batch.seq_len_bound[b]));
  }
  const attention::PathExtents extents = attention::extents_of(attention_, limits_.device, next_, threads_);
  const routing::Workspace workspace =
      routing::size_workspace(attention_, limits_, routing::budget_of(limits_, product_bytes_), extents);
  made_for_ = next_;

  // Nothing is refused any more.
  requests_.swap(next_);
  std::copy(workspace.blocking.begin(), workspace.blocking.end(), std::begin(blocking_));
  kept_bytes_ = workspace.kept_bytes;
  workspace_bytes_ = workspace.bytes;
  made_exact_ = exact_ = batch.exact;
  if (limits_.device.cuda != nullptr) {
    tables_ = nullptr;
    uploaded_ = false;
    try {
      table_bytes_ = attention::plan_device_passes(*this, extents, device_passes_);
    } catch (...) {  // the host's memory ran out: half of the passes are nobody's
      device_passes_.reset();
      table_bytes_ = 0;
      throw;
    }
  }
}

Plan plan(const Attention& attention, const Batch& batch, const Limits& limits, const Hints& hints) {
  validate(attention, limits, hints);
  Plan plan;
  plan.attention_ = attention;
  plan.limits_ = limits;
  plan.force_ = hints.force;
  plan.profile_ = hints.profile ? *hints.profile : nominal_profile(attention, limits.device);
  plan.threads_ = routing::threads_of(limits.device);
  plan.product_bytes_ = routing::product_bytes_of(attention, limits.device);
  for (const Path path : kPaths) {
    plan.serves_[static_cast<std::size_t>(path)] =
        attention::algorithm_of(path, limits.device).unmet_by_attention(attention).empty();
  }
  plan.remake(batch);
  return plan;
}

std::vector<std::string> unmet_requirements(Path path, const Attention& attention, std::int64_t begin, std::int64_t end,
                                            bool exact, const Device& device) {
  return attention::algorithm_of(path, device).unmet_requirements(attention, begin, end, exact);
}

}  // namespace headrace
