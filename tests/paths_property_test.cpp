// SPDX-License-Identifier: Apache-2.0
// What must hold for every path on every input, each path forced through the public API and judged by the float64
// oracle, row by row.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/case_gen.h"
#include "support/compare.h"
#include "support/property.h"
#include "support/run_path.h"

namespace headrace {
namespace {

using attention::OracleRow;
using test::AttentionCase;
using test::CaseSpec;
using test::Demand;
using test::OutputBuffer;

class EachPath : public testing::TestWithParam<Path> {
 protected:
  /// Cases that the path under test can run.
  static rc::Gen<CaseSpec> specs(Demand demand = {}) {
    demand.covered = GetParam() == Path::dense_mha;
    return test::case_specs(demand);
  }
};

void expect_oracle(const AttentionCase& problem, const OutputBuffer& result, const std::vector<OracleRow>& oracle,
                   const std::string& what = "") {
  const auto comparison = test::compare(problem, result, oracle, test::tolerance_of(problem.spec().compute));
  if (comparison.failure) {
    RC_FAIL(what + *comparison.failure);
  }
}

void expect_same_bits(const std::vector<std::uint32_t>& have, const std::vector<std::uint32_t>& want,
                      const std::string& what) {
  if (have != want) {
    RC_FAIL(what + ": the bits differ");
  }
}

TEST_P(EachPath, GivesTheOraclesAnswer) {
  test::check_property(test::property_cases(), [] {
    const AttentionCase problem(*specs());
    const int threads = *rc::gen::element(1, 1, 2);
    expect_oracle(problem, test::run_path(problem, GetParam(), {.threads = threads}), problem.oracle());
  });
}

TEST_P(EachPath, TakesAnyWorkspaceAboveTheLeast) {
  test::check_property(test::property_cases() / 4, [] {
    const AttentionCase problem(*specs());
    const auto oracle = problem.oracle();
    const std::int64_t least = test::least_workspace(problem, GetParam());
    const std::int64_t most = test::plan_path(problem, GetParam()).workspace_bytes();
    for (const std::int64_t limit : {least, least + (most - least) / 3, *rc::gen::inRange(least, most + 1)}) {
      expect_oracle(problem, test::run_path(problem, GetParam(), {.threads = 1, .workspace_limit = limit}), oracle,
                    "workspace of " + std::to_string(limit) + " bytes: ");
    }
  });
}

TEST_P(EachPath, OrderOfASelectionMeansNothing) {
  test::check_property(test::property_cases() / 4, [] {
    AttentionCase problem(*specs());
    const auto before = test::run_path(problem, GetParam()).bits();
    problem.shuffle_selection(*rc::gen::arbitrary<std::uint64_t>());
    expect_same_bits(test::run_path(problem, GetParam()).bits(), before, "after shuffling each row's selection");
  });
}

TEST_P(EachPath, UnusedCacheBytesMeanNothing) {
  test::check_property(test::property_cases() / 4, [] {
    AttentionCase problem(*specs());  // with NaN there
    const auto before = test::run_path(problem, GetParam()).bits();
    problem.fill_unused(std::byte{0x35});
    expect_same_bits(test::run_path(problem, GetParam()).bits(), before, "with numbers in unused pages");
  });
}

TEST_P(EachPath, ASpoiltRequestSpoilsNoOther) {
  test::check_property(test::property_cases() / 4, [] {
    AttentionCase problem(*specs({.least_requests = 2}));
    const OutputBuffer before = test::run_path(problem, GetParam());
    const auto requests = static_cast<std::int64_t>(problem.spec().requests.size());
    const std::int64_t spoilt = *rc::gen::inRange<std::int64_t>(0, requests);
    problem.spoil(spoilt);
    const OutputBuffer after = test::run_path(problem, GetParam());
    for (std::int64_t request = 0; request < requests; ++request) {
      if (request != spoilt) {
        const std::int64_t begin = problem.begin_of(request);
        const std::int64_t end = problem.begin_of(request + 1);
        expect_same_bits(after.bits(begin, end), before.bits(begin, end),
                         "request " + std::to_string(request) + " beside NaN keys of " + std::to_string(spoilt));
      }
    }
  });
}

TEST_P(EachPath, GivesTheSameBitsForAnyNumberOfThreads) {
  test::check_property(test::property_cases() / 4, [] {
    const AttentionCase problem(*specs());
    const auto one = test::run_path(problem, GetParam(), {.threads = 1}).bits();
    for (const int threads : {2, 3}) {
      expect_same_bits(test::run_path(problem, GetParam(), {.threads = threads}).bits(), one,
                       std::to_string(threads) + " threads against one");
    }
  });
}

/// The rows [begin, end) of a one-request case as a step of their own, after the rows before them.
void run_chunk(const AttentionCase& problem, Path path, std::int64_t begin, std::int64_t end, const Outputs& whole) {
  const auto query_len = static_cast<std::int32_t>(end - begin);
  const auto seq_len = static_cast<std::int32_t>(problem.spec().requests[0].context_len + end);
  const std::int32_t query_start[] = {0, query_len};
  Inputs inputs = problem.inputs();
  inputs.q = inputs.q.slice(begin, end);
  inputs.requests.query_start = View<const std::int32_t>(query_start, {2});
  inputs.requests.seq_len = View<const std::int32_t>(&seq_len, {1});
  if (!inputs.selection.index.empty()) {
    inputs.selection.index = inputs.selection.index.slice(begin, end);
  }
  if (!inputs.selection.count.empty()) {
    inputs.selection.count = inputs.selection.count.slice(begin, end);
  }
  Hints hints;
  hints.force = path;
  Limits limits;
  limits.device.threads = 1;
  const Plan chunk = plan(problem.attention(), {{&query_len, 1}, {&seq_len, 1}, true}, limits, hints);
  test::run_plan(chunk, problem, inputs, {whole.out.slice(begin, end), whole.lse.slice(begin, end)});
}

TEST_P(EachPath, ChunksOfAPromptGiveThePromptsAnswer) {
  test::check_property(test::property_cases() / 4, [] {
    const AttentionCase problem(*specs({.by_position = true, .least_requests = 1, .most_requests = 1}));
    OutputBuffer result = problem.output_buffer();
    const std::int64_t chunk = *rc::gen::inRange<std::int64_t>(1, 20);
    for (std::int64_t begin = 0; begin < problem.tokens(); begin += chunk) {
      run_chunk(problem, GetParam(), begin, std::min(begin + chunk, problem.tokens()), result.outputs());
    }
    expect_oracle(problem, result, problem.oracle(), "chunks of " + std::to_string(chunk) + ": ");
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, EachPath, testing::ValuesIn(kPaths),
                         [](const auto& info) { return std::string(name_of(info.param)); });

/// A path's output as if it were the oracle's, to hold another against it.
std::vector<OracleRow> rows_of(const AttentionCase& problem, const OutputBuffer& result) {
  const Geometry& g = problem.attention().geometry;
  std::vector<OracleRow> rows;
  for (std::int64_t token = 0; token < problem.tokens(); ++token) {
    OracleRow row;
    for (std::int64_t head = 0; head < g.num_heads; ++head) {
      row.lse.push_back(static_cast<double>(result.lse(token, head)));
      for (std::int64_t i = 0; i < g.v_head_dim; ++i) {
        row.out.push_back(result.out(token, head, i));
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

TEST(AllPaths, AgreeWhereEveryKeyIsSelected) {
  test::check_property(test::property_cases() / 4, [] {
    const AttentionCase problem(*test::case_specs({.covered = true}));
    const auto dense = rows_of(problem, test::run_path(problem, Path::dense_mha));
    expect_oracle(problem, test::run_path(problem, Path::masked_mha), dense, "masked_mha against dense_mha: ");
    expect_oracle(problem, test::run_path(problem, Path::topk_mqa), dense, "topk_mqa against dense_mha: ");
  });
}

TEST(AllPaths, AgreeOnAnySelection) {
  test::check_property(test::property_cases() / 4, [] {
    const AttentionCase problem(*test::case_specs({}));
    const auto masked = rows_of(problem, test::run_path(problem, Path::masked_mha));
    expect_oracle(problem, test::run_path(problem, Path::topk_mqa), masked, "topk_mqa against masked_mha: ");
  });
}

}  // namespace
}  // namespace headrace
