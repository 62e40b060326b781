// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "attention/segments.h"
#include "headrace/error.h"
#include "routing/router.h"

namespace headrace {
namespace {

void expect_within(const RequestPlan& now, const RequestPlan& made_for) {
  const auto expect = [&](const char* field, const char* what, std::int64_t bound, std::int64_t length) {
    if (length > bound) {
      throw Error(fmt::format("batch.{}[{}]", field, now.request),
                  fmt::format("at most the {} {} that request {} was planned for", bound, what, now.request),
                  std::to_string(length));
    }
  };
  expect("query_len", "query tokens", made_for.query_len, now.query_len);
  expect("seq_len_bound", "keys", made_for.context_len + made_for.query_len, now.context_len + now.query_len);
}

}  // namespace

RequestPlan Router::refresh(const RequestPlan& made_for) const {
  RequestPlan plan = describe(made_for.request);
  expect_within(plan, made_for);
  if (plan.query_len == 0) {
    return route(made_for.request);
  }
  plan.reason = made_for.reason;
  if (plan.query_len != made_for.query_len || plan.context_len != made_for.context_len) {
    plan.reason = fmt::format("as planned for {} + {}: {}", made_for.query_len, made_for.context_len, made_for.reason);
  }
  const std::int64_t end = plan.context_len + plan.query_len;
  for (std::size_t s = 0; s < made_for.segments.size(); ++s) {
    const Segment segment = attention::clip_segment(made_for, s, plan.context_len, end);
    if (segment.begin >= segment.end) {
      continue;
    }
    const Option option = evaluate(segment.path, segment.begin, segment.end, end);
    if (!option.unmet.empty()) {
      throw Error(fmt::format("batch.seq_len_bound[{}]", plan.request),
                  fmt::format("lengths at which {} still serves the rows planned for it", name_of(segment.path)),
                  fmt::format("{} + {}: {}", plan.query_len, plan.context_len, fmt::join(option.unmet, "; ")));
    }
    plan.path = segment.path;
    plan.predicted_ms += option.predicted_ms;
    plan.segments.push_back(segment);
  }
  list_alternatives(plan, evaluate_all(plan.context_len, end, end));
  return plan;
}

std::vector<RequestPlan> Router::refresh(std::span<const RequestPlan> made_for) const {
  if (batch_.query_len.size() != made_for.size()) {
    throw Error("batch.query_len", fmt::format("the {} requests that the plan was made for", made_for.size()),
                std::to_string(batch_.query_len.size()));
  }
  std::vector<RequestPlan> requests;
  requests.reserve(made_for.size());
  for (const RequestPlan& request : made_for) {
    requests.push_back(refresh(request));
  }
  return requests;
}

void Plan::refresh(const Batch& later) {
  requests_ = Router(attention_, later, limits_, hints_).refresh(made_for_);
  exact_ = later.exact;
}

}  // namespace headrace
