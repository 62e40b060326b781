// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "attention/arena.h"
#include "attention/paths/path.h"
#include "attention/segments.h"
#include "attention/verbose.h"
#include "cache/requests.h"
#include "core/layout_text.h"
#include "headrace/attention.h"
#include "headrace/error.h"

namespace headrace {
namespace {

using attention::Rows;

/// Rows are contiguous, and no two of them share an element: from the narrowest stride outwards, each steps over all
/// that lies within. Matrix products also want them to follow each other upwards.
template <class AView>
void expect_rows(std::string_view name, const AView& view) {
  const int last = view.rank() - 1;
  std::vector<int> outer(static_cast<std::size_t>(last));
  std::iota(outer.begin(), outer.end(), 0);
  std::sort(outer.begin(), outer.end(), [&](int a, int b) { return view.stride(a) < view.stride(b); });
  bool good = view.dim(last) <= 1 || view.stride(last) == 1;
  std::int64_t within = view.dim(last);
  for (const int i : outer) {
    if (view.dim(i) > 1) {
      good = good && view.stride(i) >= within;
      within += (view.dim(i) - 1) * view.stride(i);
    }
  }
  if (!good) {
    throw Error(
        std::string(name), "a contiguous last dimension, and rows that do not overlap",
        fmt::format("strides [{}]", fmt::join(view.strides().begin(), view.strides().begin() + last + 1, ", ")));
  }
}

/// Exact lengths against the plan's bounds, and every page that holds a key against the cache.
void validate_requests(const Plan& plan, const Inputs& inputs, std::int64_t tokens) {
  inputs.requests.seq_len.expect("seq_len", {static_cast<std::int64_t>(plan.requests().size())});
  for (const cache::Request& exact : cache::validate_requests(inputs.requests, tokens)) {
    const RequestPlan& planned = plan.requests()[static_cast<std::size_t>(exact.number)];
    const std::int64_t bound = planned.query_len + planned.context_len;
    const char* range = plan.exact() ? "exactly" : "at most";
    if (exact.query_len > planned.query_len || (plan.exact() && exact.query_len != planned.query_len)) {
      throw Error(fmt::format("query_start[{}]", exact.number + 1),
                  fmt::format("{} the {} query tokens planned for request {}", range, planned.query_len, exact.number),
                  std::to_string(exact.query_len));
    }
    if (exact.seq_len > bound || (plan.exact() && exact.seq_len != bound)) {
      throw Error(fmt::format("seq_len[{}]", exact.number), fmt::format("{} the planned {}", range, bound),
                  std::to_string(exact.seq_len));
    }
    if (exact.query_len > 0) {
      cache::validate_pages(inputs.requests, exact.number, 0, exact.seq_len, inputs.cache);
    }
  }
}

void validate_selection(const Plan& plan, const Inputs& inputs, std::int64_t tokens) {
  const Selection& selection = inputs.selection;
  if (selection.space != plan.attention().space) {
    const auto name = [](SelectionSpace space) {
      return space == SelectionSpace::cache_slot ? "cache_slot" : "request_position";
    };
    throw Error("selection.space", fmt::format("{}, as the plan's attention says", name(plan.attention().space)),
                name(selection.space));
  }
  if (selection.index.empty()) {
    for (const RequestPlan& planned : plan.requests()) {
      const cache::Request exact = cache::request_of(inputs.requests, planned.request);
      for (std::int64_t p = exact.context_len(); p < exact.seq_len; ++p) {
        if (!plan.attention().rule.covers(p)) {
          throw Error("selection.index",
                      fmt::format("a selection, for the row at position {} of request {} is not covered by {}", p,
                                  planned.request, plan.attention().rule.to_string()),
                      "none");
        }
      }
    }
    return;
  }
  selection.index.expect("selection.index", {tokens, -1});
  if (!selection.count.empty()) {
    selection.count.expect("selection.count", {tokens});
  }
}

void validate_views(const Plan& plan, const Weights& weights, const Inputs& inputs, const Outputs& outputs) {
  const Attention& attention = plan.attention();
  const Geometry& g = attention.geometry;
  inputs.q.expect("q", {-1, g.num_heads, g.qk_head_dim()});
  expect_dtype("q", attention.compute, inputs.q.dtype());
  expect_rows("q", inputs.q);
  weights.kv_b_proj.expect("kv_b_proj", {g.num_heads * (g.qk_nope_head_dim + g.v_head_dim), g.kv_lora_rank});
  expect_dtype("kv_b_proj", attention.compute, weights.kv_b_proj.dtype());
  expect_rows("kv_b_proj", weights.kv_b_proj);
  if (!weights.sink.empty()) {
    weights.sink.expect("sink", {g.num_heads});
  }
  const std::int64_t tokens = inputs.q.dim(0);
  outputs.out.expect("out", {tokens, g.num_heads, g.v_head_dim});
  if (outputs.out.dtype() != DType::float32) {
    expect_dtype("out", attention.compute, outputs.out.dtype());
  }
  expect_rows("out", outputs.out);
  if (!outputs.lse.empty()) {
    outputs.lse.expect("lse", {tokens, g.num_heads});
    expect_rows("lse", outputs.lse);
  }
  validate_cache(inputs.cache, attention.format, g);
  validate_requests(plan, inputs, tokens);
  validate_selection(plan, inputs, tokens);
}

void validate_workspace(const Plan& plan, std::span<std::byte> workspace) {
  if (static_cast<std::int64_t>(workspace.size()) < plan.workspace_bytes()) {
    throw Error("workspace", fmt::format("at least {} bytes", plan.workspace_bytes()),
                std::to_string(workspace.size()));
  }
  if (reinterpret_cast<std::uintptr_t>(workspace.data()) % attention::Arena::kAlignment != 0) {
    throw Error("workspace", fmt::format("an address divisible by {}", attention::Arena::kAlignment),
                layout_text(workspace.data(), attention::Arena::kAlignment));
  }
}

/// The rows of a path, request by request, with exact lengths.
std::vector<Rows> rows_on(Path path, const Plan& plan, const Requests& requests) {
  std::vector<Rows> rows;
  for (const RequestPlan& planned : plan.requests()) {
    const cache::Request exact = cache::request_of(requests, planned.request);
    for (std::size_t s = 0; s < planned.segments.size(); ++s) {
      const Segment segment = attention::clip_segment(planned, s, exact.context_len(), exact.seq_len);
      if (segment.path == path && segment.begin < segment.end) {
        rows.push_back({planned.request, segment.begin, segment.end});
      }
    }
  }
  return rows;
}

}  // namespace

void attend(const Plan& plan, const Weights& weights, const Inputs& inputs, const Outputs& outputs,
            std::span<std::byte> workspace) {
  if (plan.device().cuda != nullptr) {
    throw Error("plan", "a plan for the processor", "one for a GPU, whose attend takes a stream (headrace/cuda.h)");
  }
  validate_views(plan, weights, inputs, outputs);
  validate_workspace(plan, workspace);
  attention::VerboseCall verbose(plan, inputs.q.dim(0));
  const attention::Call call{plan, weights, inputs, outputs};
  for (const Path path : kPaths) {
    const std::vector<Rows> rows = rows_on(path, plan, inputs.requests);
    if (!rows.empty()) {
      for (const Rows& some : rows) {
        verbose.add(path, some.count());
      }
      attention::cpu_path(path).run(call, rows, attention::Arena(workspace));
    }
  }
}

}  // namespace headrace
