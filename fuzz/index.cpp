// SPDX-License-Identifier: Apache-2.0
// Index data: lengths, block tables, selections and the bounds of a plan. Down every path the answer is the float64
// oracle's where the contract says that there is one, and an Error that leaves the outputs alone where not; and what
// `validate` counts is what a naive count counts.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "attention/oracle.h"
#include "headrace/plan.h"
#include "headrace/validate.h"
#include "index_problem.h"
#include "naive.h"
#include "target.h"

namespace headrace::fuzz {
namespace {

using attention::OracleRow;

constexpr float kUntouched = -12345.0F;

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

/// Outputs as far as one call may write.
struct Results {
  explicit Results(const IndexProblem& problem)
      : tokens(problem.tokens()),
        heads(problem.attention().geometry.num_heads),
        dim(problem.attention().geometry.v_head_dim),
        out(static_cast<std::size_t>(tokens * heads * dim), kUntouched),
        lse(static_cast<std::size_t>(tokens * heads), kUntouched) {}

  [[nodiscard]] Outputs views() {
    return {View<float>(out.data(), {tokens, heads, dim}), View<float>(lse.data(), {tokens, heads})};
  }
  [[nodiscard]] bool untouched() const {
    return out == std::vector<float>(out.size(), kUntouched) && lse == std::vector<float>(lse.size(), kUntouched);
  }

  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t dim;
  std::vector<float> out;
  std::vector<float> lse;
};

std::vector<OracleRow> oracle_of(const IndexProblem& problem) {
  const Inputs inputs = problem.inputs();
  std::vector<attention::OracleQuery> queries;
  for (std::int64_t b = 0; b < inputs.requests.seq_len.dim(0); ++b) {
    const std::int64_t end = inputs.requests.query_start(b + 1);
    for (std::int64_t token = inputs.requests.query_start(b); token < end; ++token) {
      queries.push_back({b, token, inputs.requests.seq_len(b) - (end - token)});
    }
  }
  return attention::oracle_rows(problem.attention(), problem.weights(), inputs, queries, 1);
}

/// Values are sums of R products of standard normals over the root of R, so about 1; scores likewise. float32 rounds
/// each of some hundreds of additions by 2^-24 of that, up as often as down. bfloat16 rounds operands of scores of up
/// to 5, and weights, by 2^-9. A key that is attended to and should not be, or the reverse, is 10^-3 of most rows at
/// least.
double tolerance_of(DType compute) { return compute == DType::float32 ? 3e-5 : 8e-2; }

/// Throws a Finding unless every number is the oracle's.
void compare(const std::vector<float>& have, std::size_t first, const std::vector<double>& want, double tolerance,
             const std::string& what) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    const auto value = static_cast<double>(have[first + i]);
    const bool agrees = std::isinf(want[i])
                            ? value == want[i]
                            : std::fabs(value - want[i]) <= tolerance * std::max(1.0, std::fabs(want[i]));
    if (!agrees) {
      throw Finding(what + " " + std::to_string(i) + " is " + std::to_string(value) + ", the oracle's " +
                    std::to_string(want[i]));
    }
  }
}

void compare(const IndexProblem& problem, const std::vector<OracleRow>& oracle, const Results& results,
             const std::string& path) {
  const double tolerance = tolerance_of(problem.attention().compute);
  for (std::size_t token = 0; token < oracle.size(); ++token) {
    const OracleRow& row = oracle[token];
    const std::string where = path + ", token " + std::to_string(token);
    compare(results.out, token * row.out.size(), row.out, tolerance, where + ": value");
    compare(results.lse, token * row.lse.size(), row.lse, tolerance, where + ": LSE of head");
  }
}

/// Refreshes a plan to a shorter batch, and to the one that it was made for again: nothing is left of the shorter one.
void refresh_down_and_up(const IndexProblem& problem, Plan& plan, const std::string& name) {
  const std::string before = plan.explain();
  const std::int64_t workspace_bytes = plan.workspace_bytes();
  if (!completes([&] { plan.refresh(problem.shorter_batch()); })) {  // rows that dense_mha can no longer serve
    require(plan.explain() == before, name + " is changed by a refresh that it refuses");
  }
  require(completes([&] { plan.refresh(problem.batch()); }), name + " refuses the batch that it was made for");
  require(plan.explain() == before && plan.workspace_bytes() == workspace_bytes, name + " is not what it was");
}

/// The plan with one path forced, or the router's choice; nothing where plan() refuses.
std::optional<Plan> plan_of(const IndexProblem& problem, std::optional<Path> path) {
  Limits limits;
  limits.workspace_bytes = problem.workspace_limit();
  limits.device.threads = problem.threads();
  Hints hints;
  hints.force = path;
  std::optional<Plan> plan;
  completes([&] { plan = headrace::plan(problem.attention(), problem.batch(), limits, hints); });
  require(!plan || plan->workspace_bytes() <= limits.workspace_bytes, "a plan above its workspace limit");
  return plan;
}

void run(const IndexProblem& problem, std::optional<Path> path, const std::vector<OracleRow>* oracle) {
  const std::string name(path ? name_of(*path) : "the routed plan");
  std::optional<Plan> plan = plan_of(problem, path);
  if (!plan) {
    return;
  }
  if (problem.refreshes()) {
    refresh_down_and_up(problem, *plan, name);
  }
  std::vector<CacheLine> memory(static_cast<std::size_t>((plan->workspace_bytes() + 63) / 64));
  const std::span<std::byte> workspace = std::as_writable_bytes(std::span(memory));
  std::fill(workspace.begin(), workspace.end(), std::byte{0xff});
  Results results(problem);
  const bool done = completes([&] { attend(*plan, problem.weights(), problem.inputs(), results.views(), workspace); });
  require(done == (oracle != nullptr), name + (done ? " takes index data that is not valid" : " refuses valid data"));
  if (done) {
    compare(problem, *oracle, results, name);
  } else {
    require(results.untouched(), name + " writes before it refuses");
  }
}

void check_attend(const IndexProblem& problem) {
  std::optional<std::vector<OracleRow>> oracle;
  if (must_attend(problem.attention(), problem.batch(), problem.inputs())) {
    oracle = oracle_of(problem);
  }
  const std::vector<OracleRow>* const expected = oracle ? &*oracle : nullptr;
  run(problem, std::nullopt, expected);
  for (const Path path : kPaths) {
    run(problem, path, expected);
  }
}

void check_counts(const IndexProblem& problem) {
  const Inputs inputs = problem.inputs();
  if (inputs.selection.index.empty()) {
    return;
  }
  std::optional<SelectionCounts> counts;
  const bool done =
      completes([&] { counts = count_selection(inputs.selection, inputs.requests, inputs.cache.page_size); });
  require(done == lengths_agree(inputs.requests, problem.tokens()), "count_selection and the lengths disagree");
  if (!done) {
    return;
  }
  const SelectionCounts naive = count_naively(inputs);
  const auto same = [&](std::int64_t SelectionCounts::*field, const char* name) {
    require(*counts.*field == naive.*field, std::string(name) + ": count_selection says " +
                                                std::to_string(*counts.*field) + ", a naive count " +
                                                std::to_string(naive.*field));
  };
  same(&SelectionCounts::rows, "rows");
  same(&SelectionCounts::attended, "attended");
  same(&SelectionCounts::unused, "unused");
  same(&SelectionCounts::negative, "negative");
  same(&SelectionCounts::out_of_range, "out_of_range");
  same(&SelectionCounts::future, "future");
  same(&SelectionCounts::repeated, "repeated");
  same(&SelectionCounts::empty_rows, "empty_rows");
  same(&SelectionCounts::rows_past_count, "rows_past_count");
  same(&SelectionCounts::bad_counts, "bad_counts");
}

void check_finite_keys(IndexProblem& problem) {
  const Inputs inputs = problem.inputs();
  const std::int64_t requests = inputs.requests.seq_len.dim(0);
  bool valid = lengths_agree(inputs.requests, inputs.requests.query_start(requests));
  for (std::int64_t b = 0; b < requests; ++b) {
    valid = valid && has_pages(inputs, b);
  }
  const auto count = [&] {
    std::optional<std::int64_t> keys;
    completes([&] {
      keys = count_non_finite_keys(problem.attention().geometry, problem.attention().format, inputs.cache,
                                   inputs.requests);
    });
    return keys;
  };
  require(count() == (valid ? std::optional<std::int64_t>(0) : std::nullopt), "non-finite keys where there are none");
  problem.spoil_slot();
  if (valid) {
    require(count() == keys_in_slot(inputs, problem.spoilt_slot()), "the keys of a spoilt slot");
  }
}

}  // namespace
}  // namespace headrace::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headrace::fuzz;
  IndexProblem problem(ByteSource({data, size}));
  check_attend(problem);
  check_counts(problem);
  check_finite_keys(problem);  // last, for it spoils a key
  return 0;
}
