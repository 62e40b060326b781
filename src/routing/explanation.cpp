// SPDX-License-Identifier: Apache-2.0
//
// The texts of a plan. None is made before it is asked for: a step has hundreds of requests, and nobody reads why.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "attention/segments.h"
#include "headrace/error.h"
#include "routing/router.h"

namespace headrace {
namespace {

std::string describe_rows(std::int64_t begin, std::int64_t end) {
  return end - begin == 1 ? fmt::format("the row at position {}", begin)
                          : fmt::format("rows at positions {} to {}", begin, end - 1);
}

void expect_request(std::int64_t request, std::span<const RequestPlan> requests) {
  if (request < 0 || request >= std::ssize(requests)) {
    throw Error("request", fmt::format("a number in [0, {})", requests.size()), std::to_string(request));
  }
}

}  // namespace

std::vector<std::string> Router::unmet(Path path, std::int64_t begin, std::int64_t end, std::int64_t seq_len) const {
  std::vector<std::string> unmet = algorithm(path).unmet_requirements(attention_, begin, end, exact_);
  const std::int64_t keys = attention::most_keys(attention_, plan_.device(), end, seq_len);
  if (const std::int64_t least = least_bytes(path, keys); budget_.limited && least > budget_.bytes) {
    unmet.push_back(fmt::format("it needs at least {} bytes of workspace for {} keys, the limit is {}",
                                budget_.workspace(least), keys, plan_.limits_.workspace_bytes));
  }
  return unmet;
}

std::string Router::why(const Options& options) {
  const auto able = std::count_if(options.begin(), options.end(), [](const Option& option) { return option.can_run; });
  return able == 1 ? "the only path that can run" : fmt::format("predicted fastest of {} paths that can run", able);
}

std::string Router::reason(const RequestPlan& routed) const {
  if (routed.query_len == 0) {
    return "no query tokens";
  }
  if (plan_.force_) {
    return "forced";
  }
  const std::int64_t begin = routed.context_len;
  const std::int64_t end = begin + routed.query_len;
  const Options whole = evaluate_all(begin, end, end);
  if (routed.segments.size() > 1) {
    const Segment& first = routed.segments[0];
    const Segment& second = routed.segments[1];
    return fmt::format("{} are covered and go {} ({}), {} go {} ({}); faster together than {} alone",
                       describe_rows(begin, first.end), name_of(first.path), why(evaluate_all(begin, first.end, end)),
                       describe_rows(second.begin, end), name_of(second.path),
                       why(evaluate_all(second.begin, end, end)), name_of(cheapest(whole)->path));
  }
  if (routed.skip_scoring) {
    return fmt::format("{} covers every row; {}", attention_.rule.to_string(), why(whole));
  }
  return why(whole);
}

std::vector<Alternative> Router::alternatives(const RequestPlan& plan) const {
  std::vector<Alternative> others;
  if (plan.query_len == 0) {
    return others;
  }
  const std::int64_t begin = plan.context_len;
  const std::int64_t end = begin + plan.query_len;
  for (const Path path : kPaths) {
    if (path != plan.path) {
      const Option option = evaluate(path, begin, end, end);
      others.push_back(
          {path, option.predicted_ms, option.can_run ? std::vector<std::string>() : unmet(path, begin, end, end)});
    }
  }
  return others;
}

std::string Plan::reason(std::int64_t request) const {
  expect_request(request, requests_);
  const RequestPlan& now = requests_[static_cast<std::size_t>(request)];
  const RequestPlan& made_for = made_for_[static_cast<std::size_t>(request)];
  const bool other = now.query_len != made_for.query_len || now.context_len != made_for.context_len;
  if (now.query_len == 0 && other) {
    return "no query tokens";
  }
  const std::string reason = Router(*this, std::ssize(made_for_), made_exact_).reason(made_for);
  return other ? fmt::format("as planned for {} + {}: {}", made_for.query_len, made_for.context_len, reason) : reason;
}

std::vector<Alternative> Plan::alternatives(std::int64_t request) const {
  expect_request(request, requests_);
  return Router(*this, std::ssize(requests_), exact_).alternatives(requests_[static_cast<std::size_t>(request)]);
}

std::string Plan::explain() const {
  fmt::memory_buffer text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{}, {} compute, cache {}, {} threads, workspace {} bytes\n", attention_.rule.to_string(),
                 name_of(attention_.compute), name_of(attention_.format), threads_, workspace_bytes_);
  for (const Path path : kPaths) {
    if (kept_bytes(path) > 0) {
      fmt::format_to(out, "layers that share a selection may share what {} makes of it, {} bytes of the workspace\n",
                     name_of(path), kept_bytes(path));
    }
  }
  for (const RequestPlan& request : requests_) {
    fmt::format_to(out, "request {}: {} + {} -> {} ({:.3g} ms){}\n  {}\n", request.request, request.query_len,
                   request.context_len, name_of(request.path), request.predicted_ms,
                   request.skip_scoring ? ", scoring not needed" : "", reason(request.request));
    for (const Alternative& other : alternatives(request.request)) {
      fmt::format_to(out, "  not {}: {}\n", name_of(other.path),
                     other.unmet.empty() ? fmt::format("{:.3g} ms", other.predicted_ms)
                                         : fmt::format("{}", fmt::join(other.unmet, "; ")));
    }
  }
  return fmt::to_string(text);
}

}  // namespace headrace
