// SPDX-License-Identifier: Apache-2.0
#include "routing/router.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "attention/segments.h"
#include "headrace/error.h"
#include "routing/cost_model.h"

namespace headrace {

Router::Router(const Plan& plan, std::int64_t requests, bool exact)
    : plan_(plan),
      attention_(plan.attention_),
      requests_(requests),
      exact_(exact),
      budget_(routing::budget_of(plan.limits_, plan.product_bytes_)) {
  for (const Path path : kPaths) {
    algorithms_[static_cast<std::size_t>(path)] = &attention::algorithm_of(path, plan.device());
  }
}

std::int64_t Router::least_bytes(Path path, std::int64_t keys) const {
  // One row at once, in whatever company the request is.
  const attention::Extents extents{.rows = 1,
                                   .request_rows = 1,
                                   .keys = keys,
                                   .total_keys = keys,
                                   .requests = requests_,
                                   .other_rows = 1,
                                   .threads = plan_.threads()};
  const attention::PathAlgorithm& of = algorithm(path);
  return of.workspace_bytes(attention_, extents, of.choose_blocking(attention_, extents, 0));
}

bool Router::fits(Path path, std::int64_t keys) const {
  std::int64_t& fitting = fitting_keys_[static_cast<std::size_t>(path)];
  if (keys > fitting && least_bytes(path, keys) <= budget_.bytes) {
    fitting = keys;
  }
  return keys <= fitting;
}

Router::Option Router::evaluate(Path path, std::int64_t begin, std::int64_t end, std::int64_t seq_len) const {
  Option option{.path = path};
  const attention::PathAlgorithm& of = algorithm(path);
  if (!plan_.serves_[static_cast<std::size_t>(path)] || !of.serves_rows(attention_, begin, end, exact_)) {
    return option;
  }
  const std::int64_t keys = attention::most_keys(attention_, plan_.device(), end, seq_len);
  const bool within = fits(path, keys);
  if (!within && budget_.limited) {
    return option;
  }
  const attention::Extents extents{.rows = end - begin,
                                   .request_rows = end - begin,
                                   .keys = keys,
                                   .total_keys = keys,
                                   .requests = 1,
                                   .threads = plan_.threads()};
  const Blocking blocking = of.choose_blocking(attention_, extents, within ? budget_.bytes : least_bytes(path, keys));
  const attention::Work work = of.count_work(attention_, begin, end, blocking.query_slice);
  option.can_run = true;
  option.predicted_ms = routing::predict_ms(work, plan_.profile_, plan_.threads(), end - begin);
  return option;
}

Router::Options Router::evaluate_all(std::int64_t begin, std::int64_t end, std::int64_t seq_len) const {
  return {evaluate(Path::dense_mha, begin, end, seq_len), evaluate(Path::masked_mha, begin, end, seq_len),
          evaluate(Path::topk_mqa, begin, end, seq_len)};
}

const Router::Option* Router::cheapest(const Options& options) noexcept {
  const Option* best = nullptr;
  for (const Option& option : options) {
    if (option.can_run && (best == nullptr || option.predicted_ms < best->predicted_ms)) {
      best = &option;
    }
  }
  return best;
}

std::int64_t Router::scoring_begin(std::int64_t begin, std::int64_t end) const {
  const std::int64_t prefix = std::min(attention_.rule.covered_prefix(), end);
  if (!exact_) {
    return prefix;
  }
  std::int64_t position = std::max(prefix, begin);
  while (position < end && attention_.rule.covers(position)) {
    ++position;
  }
  return position;
}

RequestPlan Router::describe(std::int64_t request, std::int64_t query_len, std::int64_t seq_len) const {
  RequestPlan plan;
  plan.request = request;
  plan.query_len = query_len;
  plan.context_len = seq_len - query_len;
  plan.scoring_begin = query_len == 0 ? seq_len : scoring_begin(plan.context_len, seq_len);
  plan.skip_scoring = plan.scoring_begin >= seq_len;
  return plan;
}

void Router::route_forced(RequestPlan& plan) const {
  const Path path = *plan_.force_;
  const std::int64_t begin = plan.context_len;
  const std::int64_t end = begin + plan.query_len;
  const Option forced = evaluate(path, begin, end, end);
  if (!forced.can_run) {
    throw UnsupportedError("force", fmt::format("a path that can serve request {}", plan.request),
                           fmt::format("{}: {}", name_of(path), fmt::join(unmet(path, begin, end, end), "; ")));
  }
  plan.path = path;
  plan.predicted_ms = forced.predicted_ms;
  plan.segments.push_back({plan.request, begin, end, path});
}

void Router::refuse(const RequestPlan& plan) const {
  const std::int64_t end = plan.context_len + plan.query_len;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const Path path : kPaths) {
    if (plan_.serves_[static_cast<std::size_t>(path)] &&
        algorithm(path).serves_rows(attention_, plan.context_len, end, exact_)) {
      least = std::min(least, least_bytes(path, end));
    }
  }
  throw Error("limits.workspace_bytes",
              fmt::format("at least {} bytes for request {}", budget_.workspace(least), plan.request),
              std::to_string(plan_.limits_.workspace_bytes));
}

void Router::route_cheapest(RequestPlan& plan) const {
  const std::int64_t begin = plan.context_len;
  const std::int64_t seq_len = begin + plan.query_len;
  const Options options = evaluate_all(begin, seq_len, seq_len);
  const Option* whole = cheapest(options);
  if (whole == nullptr) {
    refuse(plan);
  }

  // The first rows of a long request are covered and may be cheaper on a path of their own.
  const std::int64_t split = plan.scoring_begin;
  if (split > begin && split < seq_len) {
    const Options covered = evaluate_all(begin, split, seq_len);
    const Options rest = evaluate_all(split, seq_len, seq_len);
    const Option* first = cheapest(covered);
    const Option* second = cheapest(rest);
    if (first != nullptr && second != nullptr && first->path != second->path &&
        first->predicted_ms + second->predicted_ms < whole->predicted_ms) {
      plan.path = second->path;
      plan.predicted_ms = first->predicted_ms + second->predicted_ms;
      plan.segments.push_back({plan.request, begin, split, first->path});
      plan.segments.push_back({plan.request, split, seq_len, second->path});
      return;
    }
  }
  plan.path = whole->path;
  plan.predicted_ms = whole->predicted_ms;
  plan.segments.push_back({plan.request, begin, seq_len, whole->path});
}

RequestPlan Router::route(std::int64_t request, std::int64_t query_len, std::int64_t seq_len) const {
  RequestPlan plan = describe(request, query_len, seq_len);
  if (query_len == 0) {
    plan.path = plan_.force_.value_or(Path::topk_mqa);
  } else if (plan_.force_) {
    route_forced(plan);
  } else {
    route_cheapest(plan);
  }
  return plan;
}

}  // namespace headrace
