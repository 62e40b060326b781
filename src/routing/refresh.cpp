// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <string>

#include "attention/segments.h"
#include "headrace/error.h"
#include "routing/batch.h"
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

RequestPlan Router::refresh(const RequestPlan& made_for, std::int64_t query_len, std::int64_t seq_len) const {
  RequestPlan plan = describe(made_for.request, query_len, seq_len);
  expect_within(plan, made_for);
  if (query_len == 0) {
    return route(made_for.request, query_len, seq_len);
  }
  for (std::size_t s = 0; s < made_for.segments.size(); ++s) {
    const Segment segment = attention::clip_segment(made_for, s, plan.context_len, seq_len);
    if (segment.begin >= segment.end) {
      continue;
    }
    const Option option = evaluate(segment.path, segment.begin, segment.end, seq_len);
    if (!option.can_run) {
      const std::string why =
          fmt::format("{}", fmt::join(unmet(segment.path, segment.begin, segment.end, seq_len), "; "));
      throw Error(fmt::format("batch.seq_len_bound[{}]", plan.request),
                  fmt::format("lengths at which {} still serves the rows planned for it", name_of(segment.path)),
                  fmt::format("{} + {}: {}", plan.query_len, plan.context_len, why));
    }
    plan.path = segment.path;
    plan.predicted_ms += option.predicted_ms;
    plan.segments.push_back(segment);
  }
  return plan;
}

void Plan::refresh(const Batch& later) {
  routing::validate_batch(later, limits_);
  if (later.query_len.size() != made_for_.size()) {
    throw Error("batch.query_len", fmt::format("the {} requests that the plan was made for", made_for_.size()),
                std::to_string(later.query_len.size()));
  }
  const Router router(*this, std::ssize(made_for_), later.exact);
  next_.clear();
  for (std::size_t b = 0; b < made_for_.size(); ++b) {
    next_.push_back(router.refresh(made_for_[b], later.query_len[b], later.seq_len_bound[b]));
  }
  requests_.swap(next_);
  exact_ = later.exact;
}

}  // namespace headrace
