// SPDX-License-Identifier: Apache-2.0
#include "plan_text.h"

#include <fmt/core.h>

#include <cmath>
#include <map>
#include <tuple>
#include <vector>

#include "batch_spec.h"
#include "numbers.h"
#include "table.h"

namespace headrace::app {
namespace {

constexpr double kAboutAsLong = 1.05;  // a ratio below it reads 1.0

/// Requests of equal lengths; the plan treats them alike.
struct Group {
  std::int64_t count = 0;
  const RequestPlan* request = nullptr;
};

/// In order of first appearance.
std::vector<Group> group_equal(const Plan& plan) {
  std::vector<Group> groups;
  std::map<std::tuple<std::int64_t, std::int64_t, Path>, std::size_t> place;
  for (const RequestPlan& request : plan.requests()) {
    const auto [at, is_new] = place.try_emplace({request.query_len, request.context_len, request.path}, groups.size());
    if (is_new) {
      groups.push_back({0, &request});
    }
    ++groups[at->second].count;
  }
  return groups;
}

/// "dense_mha", or for a request in parts a line each: "dense_mha [0, 2048)", "topk_mqa [2048, 4096)".
std::string path_lines(const RequestPlan& request) {
  if (request.segments.size() < 2) {
    return std::string(name_of(request.path));
  }
  std::string lines;
  for (const Segment& segment : request.segments) {
    lines += fmt::format("{}{} [{}, {})", lines.empty() ? "" : "\n", name_of(segment.path), segment.begin, segment.end);
  }
  return lines;
}

/// "1.9", "245"
std::string factor(double ratio) { return fmt::format("{:.{}f}", ratio, ratio < 10.0 ? 1 : 0); }

/// Why a path was not taken.
std::string against(const Alternative& other, double taken_ms) {
  if (!other.unmet.empty()) {
    return "cannot run: " + join(other.unmet);
  }
  const double ratio = other.predicted_ms / taken_ms;  // not finite where the path taken costs nothing
  if (!std::isfinite(ratio) || ratio <= 0.0) {
    return "";
  }
  if (ratio > 1.0 / kAboutAsLong && ratio < kAboutAsLong) {
    return "about as long";
  }
  return ratio > 1.0 ? factor(ratio) + " times as long" : factor(1.0 / ratio) + " times faster";
}

Json alternatives_json(const Plan& plan, std::int64_t request) {
  Json alternatives = Json::array();
  for (const Alternative& other : plan.alternatives(request)) {
    alternatives.push_back({{"path", name_of(other.path)},
                            {"predicted_ms", other.unmet.empty() ? number(other.predicted_ms) : Json(nullptr)},
                            {"unmet", other.unmet}});
  }
  return alternatives;
}

}  // namespace

double predicted_ms(const Plan& plan) {
  double total = 0.0;
  for (const RequestPlan& request : plan.requests()) {
    total += request.predicted_ms;
  }
  return total;
}

std::array<std::int64_t, 3> tokens_by_path(const Plan& plan) {
  std::array<std::int64_t, 3> tokens{};
  for (const RequestPlan& request : plan.requests()) {
    for (const Segment& segment : request.segments) {
      tokens[static_cast<std::size_t>(segment.path)] += segment.end - segment.begin;
    }
  }
  return tokens;
}

Json requests_json(const Plan& plan) {
  Json requests = Json::array();
  for (const RequestPlan& request : plan.requests()) {
    Json segments = Json::array();
    for (const Segment& segment : request.segments) {
      segments.push_back({{"path", name_of(segment.path)}, {"begin", segment.begin}, {"end", segment.end}});
    }
    requests.push_back({{"request", request.request},
                        {"query_len", request.query_len},
                        {"context_len", request.context_len},
                        {"path", name_of(request.path)},
                        {"predicted_ms", number(request.predicted_ms)},
                        {"reason", plan.reason(request.request)},
                        {"skip_scoring", request.skip_scoring},
                        {"scoring_begin", request.scoring_begin},
                        {"segments", std::move(segments)},
                        {"alternatives", alternatives_json(plan, request.request)}});
  }
  return requests;
}

std::string plan_table(const Plan& plan, std::size_t width) {
  using enum Table::Align;
  Table table({{"requests"}, {"path"}, {"predicted", right}, {"why", text}});
  for (const Group& group : group_equal(plan)) {
    const RequestPlan& request = *group.request;
    const std::string lengths = RequestSpec{request.query_len, request.context_len}.to_string();
    const std::string scoring = request.skip_scoring ? "; scoring left out" : "";
    table.add({group.count == 1 ? lengths : fmt::format("{} x {}", group.count, lengths), path_lines(request),
               format_ms(request.predicted_ms), plan.reason(request.request) + scoring});
    for (const Alternative& other : plan.alternatives(request.request)) {
      table.add({"", fmt::format("  {}", name_of(other.path)),
                 other.unmet.empty() ? format_ms(other.predicted_ms) : "-", against(other, request.predicted_ms)});
    }
  }
  return table.to_string(width);
}

}  // namespace headrace::app
