// SPDX-License-Identifier: Apache-2.0
#include "routing/router.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "attention/paths/cuda_path.h"
#include "attention/segments.h"
#include "device/parallel.h"
#include "headrace/cuda.h"
#include "headrace/error.h"
#include "routing/cost_model.h"

namespace headrace {
namespace {

/// What a plan takes at most when the caller sets no limit: enough for products and tiles to run at full rate.
constexpr std::int64_t kDefaultWorkspace = std::int64_t{256} << 20;
constexpr std::int64_t kDefaultCudaWorkspace = std::int64_t{2} << 30;

void validate_lengths(const Batch& batch) {
  if (batch.query_len.size() != batch.seq_len_bound.size()) {
    throw Error("batch.seq_len_bound", fmt::format("one entry for each of {} requests", batch.query_len.size()),
                std::to_string(batch.seq_len_bound.size()));
  }
  std::int64_t tokens = 0;
  for (std::size_t b = 0; b < batch.query_len.size(); ++b) {
    if (batch.query_len[b] < 0) {
      throw Error(fmt::format("batch.query_len[{}]", b), "at least 0", std::to_string(batch.query_len[b]));
    }
    if (batch.seq_len_bound[b] < batch.query_len[b]) {
      throw Error(fmt::format("batch.seq_len_bound[{}]", b),
                  fmt::format("at least the {} query tokens", batch.query_len[b]),
                  std::to_string(batch.seq_len_bound[b]));
    }
    tokens += batch.query_len[b];
  }
  if (tokens > std::numeric_limits<std::int32_t>::max()) {
    throw Error("batch.query_len", "fewer than 2^31 tokens in all", std::to_string(tokens));
  }
}

std::string describe_rows(std::int64_t begin, std::int64_t end) {
  return end - begin == 1 ? fmt::format("the row at position {}", begin)
                          : fmt::format("rows at positions {} to {}", begin, end - 1);
}

/// Why the chosen option is the one: it is the only one, or the fastest of those that can run.
template <class Options>
std::string why(const Options& options) {
  const auto able =
      std::count_if(options.begin(), options.end(), [](const auto& option) { return option.unmet.empty(); });
  return able == 1 ? "the only path that can run" : fmt::format("predicted fastest of {} paths that can run", able);
}

void validate_threads(const Device& device) {
  if (device.threads < 0 || device.threads > kMaxThreads) {
    throw Error("limits.device.threads", fmt::format("a number in [0, {}], 0 for all of the machine's", kMaxThreads),
                std::to_string(device.threads));
  }
}

/// What a path may take: the limit, or the default where none is set.
std::int64_t budget_of(const Limits& limits) noexcept {
  if (limits.workspace_bytes != Limits{}.workspace_bytes) {
    return limits.workspace_bytes;
  }
  return limits.device.cuda != nullptr ? kDefaultCudaWorkspace : kDefaultWorkspace;
}

Profile nominal_profile(const Attention& attention, const Device& device) {
  return device.cuda != nullptr ? Profile::nominal_cuda() : Profile::nominal_cpu(attention.compute);
}

/// A number of bytes for each path.
using PathBytes = std::array<std::int64_t, std::size(kPaths)>;

/// The workspace of paths that take turns with their bytes, but for what each of them keeps.
std::int64_t bytes_beside(const PathBytes& kept, const PathBytes& bytes) noexcept {
  std::int64_t turns = 0;
  for (std::size_t p = 0; p < bytes.size(); ++p) {
    turns = std::max(turns, bytes[p] - kept[p]);
  }
  return std::accumulate(kept.begin(), kept.end(), turns);
}

/// A GPU counts as one thread.
int threads_of(const Device& device) { return device.cuda != nullptr ? 1 : device::thread_count(device.threads); }

}  // namespace

Router::Router(const Attention& attention, const Batch& batch, const Limits& limits, const Hints& hints)
    : attention_(attention),
      batch_(batch),
      limits_(limits),
      hints_(hints),
      profile_(hints.profile ? *hints.profile : nominal_profile(attention, limits.device)),
      threads_(threads_of(limits.device)) {
  attention.validate();
  validate_lengths(batch);
  profile_.validate();
  for (std::size_t b = 0; b < batch.seq_len_bound.size() && limits.max_seq_len > 0; ++b) {
    if (batch.seq_len_bound[b] > limits.max_seq_len) {
      throw Error(fmt::format("batch.seq_len_bound[{}]", b), fmt::format("at most the limit {}", limits.max_seq_len),
                  std::to_string(batch.seq_len_bound[b]));
    }
  }
  if (limits.max_requests > 0 && std::ssize(batch.query_len) > limits.max_requests) {
    throw Error("batch.query_len", fmt::format("at most the limit of {} requests", limits.max_requests),
                std::to_string(batch.query_len.size()));
  }
  const std::int64_t tokens = std::accumulate(batch.query_len.begin(), batch.query_len.end(), std::int64_t{0});
  if (limits.max_tokens > 0 && tokens > limits.max_tokens) {
    throw Error("batch.query_len", fmt::format("at most the limit of {} tokens", limits.max_tokens),
                std::to_string(tokens));
  }
  if (hints.force && std::find(std::begin(kPaths), std::end(kPaths), *hints.force) == std::end(kPaths)) {
    throw Error("force", "dense_mha, masked_mha or topk_mqa", std::to_string(static_cast<int>(*hints.force)));
  }
  validate_threads(limits.device);
  if (limits.device.cuda != nullptr && !limits.device.cuda->unmet().empty()) {
    throw Error("limits.device", "a GPU that the kernels run on", limits.device.cuda->unmet());
  }
  if (limits.workspace_bytes < 0) {
    throw Error("limits.workspace_bytes", "at least 0", std::to_string(limits.workspace_bytes));
  }
}

std::int64_t Router::budget() const noexcept { return budget_of(limits_); }

std::int64_t Router::least_bytes(Path path, std::int64_t keys) const {
  const attention::PathAlgorithm& algorithm = attention::algorithm_of(path, limits_.device);
  // One row at once, in whatever company the request is.
  const attention::Extents extents{.rows = 1,
                                   .request_rows = 1,
                                   .keys = keys,
                                   .total_keys = keys,
                                   .requests = std::ssize(batch_.query_len),
                                   .other_rows = 1,
                                   .threads = threads_};
  return algorithm.workspace_bytes(attention_, extents, algorithm.choose_blocking(attention_, extents, 0));
}

Router::Option Router::evaluate(Path path, std::int64_t begin, std::int64_t end, std::int64_t seq_len) const {
  const attention::PathAlgorithm& algorithm = attention::algorithm_of(path, limits_.device);
  Option option{.path = path, .predicted_ms = 0.0, .unmet = {}};
  option.unmet = algorithm.unmet_requirements(attention_, begin, end, batch_.exact);
  const std::int64_t keys = attention::most_keys(attention_, limits_.device, end, seq_len);
  const std::int64_t least = least_bytes(path, keys);
  if (least > limits_.workspace_bytes) {
    option.unmet.push_back(fmt::format("it needs at least {} bytes of workspace for {} keys, the limit is {}", least,
                                       keys, limits_.workspace_bytes));
  }
  if (option.unmet.empty()) {
    const attention::Extents extents{.rows = end - begin,
                                     .request_rows = end - begin,
                                     .keys = keys,
                                     .total_keys = keys,
                                     .requests = 1,
                                     .threads = threads_};
    const Blocking blocking = algorithm.choose_blocking(attention_, extents, std::max(budget(), least));
    const attention::Work work = algorithm.count_work(attention_, begin, end, blocking.query_slice);
    option.predicted_ms = routing::predict_ms(work, profile_, threads_, end - begin);
  }
  return option;
}

std::array<Router::Option, 3> Router::evaluate_all(std::int64_t begin, std::int64_t end, std::int64_t seq_len) const {
  return {evaluate(Path::dense_mha, begin, end, seq_len), evaluate(Path::masked_mha, begin, end, seq_len),
          evaluate(Path::topk_mqa, begin, end, seq_len)};
}

std::int64_t Router::scoring_begin(std::int64_t begin, std::int64_t end) const {
  const std::int64_t prefix = std::min(attention_.rule.covered_prefix(), end);
  if (!batch_.exact) {
    return prefix;
  }
  std::int64_t position = std::max(prefix, begin);
  while (position < end && attention_.rule.covers(position)) {
    ++position;
  }
  return position;
}

void Router::route_forced(RequestPlan& plan, const std::array<Option, 3>& options) const {
  const std::int64_t begin = plan.context_len;
  const std::int64_t end = begin + plan.query_len;
  const Option& forced = options[static_cast<std::size_t>(*hints_.force)];
  if (!forced.unmet.empty()) {
    throw Error("force", fmt::format("a path that can serve request {}", plan.request),
                fmt::format("{}: {}", name_of(forced.path), fmt::join(forced.unmet, "; ")));
  }
  plan.path = forced.path;
  plan.predicted_ms = forced.predicted_ms;
  plan.reason = "forced";
  plan.segments = {{plan.request, begin, end, forced.path}};
}

void Router::route_cheapest(RequestPlan& plan, const std::array<Option, 3>& options) const {
  const std::int64_t begin = plan.context_len;
  const std::int64_t seq_len = begin + plan.query_len;
  const auto cheapest = [](const std::array<Option, 3>& of) {
    const Option* best = nullptr;
    for (const Option& option : of) {
      if (option.unmet.empty() && (best == nullptr || option.predicted_ms < best->predicted_ms)) {
        best = &option;
      }
    }
    return best;
  };
  const Option* whole = cheapest(options);
  if (whole == nullptr) {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const Path path : kPaths) {
      if (attention::algorithm_of(path, limits_.device)
              .unmet_requirements(attention_, begin, seq_len, batch_.exact)
              .empty()) {
        least = std::min(least, least_bytes(path, seq_len));
      }
    }
    throw Error("limits.workspace_bytes", fmt::format("at least {} bytes for request {}", least, plan.request),
                std::to_string(limits_.workspace_bytes));
  }
  plan.path = whole->path;
  plan.predicted_ms = whole->predicted_ms;
  plan.segments = {{plan.request, begin, seq_len, whole->path}};
  plan.reason = why(options);
  if (plan.skip_scoring) {
    plan.reason = fmt::format("{} covers every row; {}", attention_.rule.to_string(), plan.reason);
  }

  // The first rows of a long request are covered and may be cheaper on a path of their own.
  const std::int64_t split = plan.scoring_begin;
  if (split <= begin || split >= seq_len) {
    return;
  }
  const std::array<Option, 3> covered = evaluate_all(begin, split, seq_len);
  const std::array<Option, 3> rest = evaluate_all(split, seq_len, seq_len);
  const Option* first = cheapest(covered);
  const Option* second = cheapest(rest);
  if (first == nullptr || second == nullptr || first->path == second->path ||
      first->predicted_ms + second->predicted_ms >= whole->predicted_ms) {
    return;
  }
  plan.path = second->path;
  plan.predicted_ms = first->predicted_ms + second->predicted_ms;
  plan.segments = {{plan.request, begin, split, first->path}, {plan.request, split, seq_len, second->path}};
  plan.reason = fmt::format("{} are covered and go {} ({}), {} go {} ({}); faster together than {} alone",
                            describe_rows(begin, split), name_of(first->path), why(covered),
                            describe_rows(split, seq_len), name_of(second->path), why(rest), name_of(whole->path));
}

RequestPlan Router::describe(std::int64_t request) const {
  const auto b = static_cast<std::size_t>(request);
  RequestPlan plan;
  plan.request = request;
  plan.query_len = batch_.query_len[b];
  plan.context_len = batch_.seq_len_bound[b] - batch_.query_len[b];
  const std::int64_t end = batch_.seq_len_bound[b];
  plan.scoring_begin = plan.query_len == 0 ? end : scoring_begin(plan.context_len, end);
  plan.skip_scoring = plan.scoring_begin >= end;
  return plan;
}

void Router::list_alternatives(RequestPlan& plan, const std::array<Option, 3>& options) {
  for (const Option& option : options) {
    if (option.path != plan.path) {
      plan.alternatives.push_back({option.path, option.predicted_ms, option.unmet});
    }
  }
}

RequestPlan Router::route(std::int64_t request) const {
  RequestPlan plan = describe(request);
  if (plan.query_len == 0) {
    plan.path = hints_.force.value_or(Path::topk_mqa);
    plan.reason = "no query tokens";
    return plan;
  }
  const std::int64_t seq_len = plan.context_len + plan.query_len;
  const std::array<Option, 3> options = evaluate_all(plan.context_len, seq_len, seq_len);
  if (hints_.force) {
    route_forced(plan, options);
  } else {
    route_cheapest(plan, options);
  }
  list_alternatives(plan, options);
  return plan;
}

void Router::size_workspace(Plan& plan) const {
  PathBytes bytes{};
  PathBytes could_keep{};
  for (std::size_t p = 0; p < bytes.size(); ++p) {
    const attention::Extents extents =
        attention::extents_on(kPaths[p], attention_, limits_.device, plan.requests_, threads_);
    if (extents.rows == 0) {
      continue;
    }
    const attention::PathAlgorithm& algorithm = attention::algorithm_of(kPaths[p], limits_.device);
    const std::int64_t least =
        algorithm.workspace_bytes(attention_, extents, algorithm.choose_blocking(attention_, extents, 0));
    plan.blocking_[p] = algorithm.choose_blocking(attention_, extents, std::max(budget(), least));
    bytes[p] = algorithm.workspace_bytes(attention_, extents, plan.blocking_[p]);
    could_keep[p] = algorithm.kept_bytes(attention_, extents, plan.blocking_[p]);
  }
  const std::int64_t most = std::max(budget(), bytes_beside({}, bytes));
  for (std::size_t p = 0; p < bytes.size(); ++p) {
    PathBytes kept = plan.kept_bytes_;
    kept[p] = could_keep[p];
    if (bytes_beside(kept, bytes) <= most) {
      plan.kept_bytes_ = kept;
    }
  }
  plan.workspace_bytes_ = bytes_beside(plan.kept_bytes_, bytes);
  if (plan.workspace_bytes_ > limits_.workspace_bytes) {
    throw Error("limits.workspace_bytes", fmt::format("at least {} bytes for the batch", plan.workspace_bytes_),
                std::to_string(limits_.workspace_bytes));
  }
}

Plan Router::make_plan() const {
  Plan plan;
  plan.attention_ = attention_;
  plan.limits_ = limits_;
  plan.hints_ = hints_;
  plan.threads_ = threads_;
  plan.exact_ = batch_.exact;
  plan.requests_.reserve(batch_.query_len.size());
  for (std::size_t b = 0; b < batch_.query_len.size(); ++b) {
    plan.requests_.push_back(route(static_cast<std::int64_t>(b)));
  }
  size_workspace(plan);
  plan.made_for_ = plan.requests_;
  if (limits_.device.cuda != nullptr) {
    plan.device_passes_ = attention::make_device_passes(plan);
  }
  return plan;
}

Plan plan(const Attention& attention, const Batch& batch, const Limits& limits, const Hints& hints) {
  return Router(attention, batch, limits, hints).make_plan();
}

std::int64_t workspace_bound(const Attention& attention, const Limits& limits) {
  attention.validate();
  validate_threads(limits.device);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (limits.max_tokens < 1 || limits.max_seq_len < 1 || limits.max_tokens > kMost || limits.max_seq_len > kMost) {
    throw Error("limits", fmt::format("max_tokens and max_seq_len from 1 to {}", kMost),
                fmt::format("{} and {}", limits.max_tokens, limits.max_seq_len));
  }
  if (limits.max_requests < 0 || limits.max_requests > kMost) {
    throw Error("limits.max_requests", fmt::format("0 to {}", kMost), std::to_string(limits.max_requests));
  }
  const std::int64_t requests = limits.max_requests > 0 ? limits.max_requests : limits.max_tokens;
  const attention::Extents extents{.rows = limits.max_tokens,
                                   .request_rows = std::min(limits.max_tokens, limits.max_seq_len),
                                   .keys = limits.max_seq_len,
                                   .total_keys = std::min(limits.max_tokens, requests) * limits.max_seq_len,
                                   .requests = requests,
                                   .other_rows = 1,  // where there are some, a path may take more
                                   .threads = threads_of(limits.device)};
  std::int64_t bound = 0;
  PathBytes bytes{};
  PathBytes kept{};
  for (const Path path : kPaths) {
    const attention::PathAlgorithm& algorithm = attention::algorithm_of(path, limits.device);
    const std::int64_t least =
        algorithm.workspace_bytes(attention, extents, algorithm.choose_blocking(attention, extents, 0));
    if (least > limits.workspace_bytes) {
      throw Error("limits.workspace_bytes", fmt::format("at least {} bytes for {}", least, name_of(path)),
                  std::to_string(limits.workspace_bytes));
    }
    // A plan stays within its budget or takes the least; smaller batches never take more than everything at once.
    const auto p = static_cast<std::size_t>(path);
    const Blocking everything = algorithm.choose_blocking(attention, extents, std::numeric_limits<std::int64_t>::max());
    bytes[p] = algorithm.workspace_bytes(attention, extents, everything);
    kept[p] = algorithm.kept_bytes(attention, extents, everything);
    bound = std::max(bound, std::min(bytes[p], std::max(budget_of(limits), least)));
  }
  // What paths keep makes a plan larger within its budget only.
  return std::max(bound, std::min(bytes_beside(kept, bytes), budget_of(limits)));
}

std::vector<std::string> unmet_requirements(Path path, const Attention& attention, std::int64_t begin, std::int64_t end,
                                            bool exact, const Device& device) {
  return attention::algorithm_of(path, device).unmet_requirements(attention, begin, end, exact);
}

}  // namespace headrace
