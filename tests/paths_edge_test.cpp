// SPDX-License-Identifier: Apache-2.0
// The corners of the contract, each by name, and what attend() refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "headrace/error.h"
#include "support/compare.h"
#include "support/errors.h"
#include "support/run_path.h"

namespace headrace {
namespace {

using test::AttentionCase;
using test::CaseSpec;
using test::OutputBuffer;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void expect_oracle(const AttentionCase& problem, const OutputBuffer& result) {
  const auto comparison = test::compare(problem, result, problem.oracle(), test::tolerance_of(problem.spec().compute));
  EXPECT_FALSE(comparison.failure) << *comparison.failure << "\n" << problem.spec();
}

/// Every path that can serve the case against the oracle; returns how many there were.
int expect_oracle_on_every_path(const AttentionCase& problem) {
  int ran = 0;
  for (const Path path : kPaths) {
    SCOPED_TRACE(std::string(name_of(path)));
    bool can_run = true;
    for (const auto& request : problem.spec().requests) {
      can_run = can_run &&
                unmet_requirements(path, problem.attention(), request.context_len, request.seq_len(), true).empty();
    }
    if (can_run) {
      expect_oracle(problem, test::run_path(problem, path));
      ++ran;
    }
  }
  return ran;
}

TEST(PathsEdge, NoTokens) {
  for (const SelectionRule& rule : {SelectionRule::none(), SelectionRule::opaque()}) {
    CaseSpec spec;
    spec.rule = rule;
    spec.gap = 3;
    expect_oracle_on_every_path(AttentionCase(spec));  // no requests
    spec.requests = {{0, 0}};
    expect_oracle_on_every_path(AttentionCase(spec));
    spec.requests = {{0, 3}, {0, 0}, {0, 70}};
    expect_oracle_on_every_path(AttentionCase(spec));
  }
}

TEST(PathsEdge, RequestsWithoutTokensAmongOthers) {
  CaseSpec spec;
  spec.rule = SelectionRule::none();
  spec.requests = {{0, 5}, {3, 0}, {0, 0}, {1, 9}, {0, 2}};
  spec.seed = test::fresh_seed();
  EXPECT_EQ(expect_oracle_on_every_path(AttentionCase(spec)), 3);
}

TEST(PathsEdge, OneTokenAfterALongContext) {
  for (const CacheFormat format :
       {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8, CacheFormat::fp8_ds_mla}) {
    for (const DType compute : {DType::float32, DType::bfloat16}) {
      CaseSpec spec;
      spec.geometry = {3, 512, 32, 64, 48};
      spec.rule = SelectionRule::none();
      spec.format = format;
      spec.compute = compute;
      spec.requests = {{1, 3000}};
      spec.page_size = 64;
      spec.with_sink = true;
      spec.seed = test::fresh_seed();
      EXPECT_EQ(expect_oracle_on_every_path(AttentionCase(spec)), 3);

      spec.rule = SelectionRule::lightning(256);
      EXPECT_EQ(expect_oracle_on_every_path(AttentionCase(spec)), 2);
    }
  }
}

/// Ignores what the random selection holds: every entry is `entry`.
void run_with_constant_selection(const CaseSpec& spec, Path path, std::int32_t entry, std::int64_t width,
                                 OutputBuffer& result) {
  const AttentionCase problem(spec);
  const std::vector<std::int32_t> index(static_cast<std::size_t>(problem.tokens() * width), entry);
  Inputs inputs = problem.inputs();
  inputs.selection.index = View<const std::int32_t>(index.data(), {problem.tokens(), width});
  inputs.selection.count = {};
  test::run_plan(test::plan_path(problem, path), problem, inputs, result.outputs());
}

TEST(PathsEdge, RowsThatSelectNothingAreZeroAndMinusInfinity) {
  for (const bool with_sink : {false, true}) {
    for (const auto space : {SelectionSpace::request_position, SelectionSpace::cache_slot}) {
      for (const std::int64_t width : {std::int64_t{0}, std::int64_t{1}, std::int64_t{70}}) {
        for (const Path path : {Path::masked_mha, Path::topk_mqa}) {
          CaseSpec spec;
          spec.with_sink = with_sink;
          spec.space = space;
          spec.requests = {{3, 100}, {2, 0}};
          const AttentionCase problem(spec);
          for (const std::int32_t entry : {-1, std::numeric_limits<std::int32_t>::max()}) {
            OutputBuffer result = problem.output_buffer();
            run_with_constant_selection(spec, path, entry, width, result);
            for (std::int64_t token = 0; token < problem.tokens(); ++token) {
              for (std::int64_t head = 0; head < spec.geometry.num_heads; ++head) {
                EXPECT_EQ(static_cast<double>(result.lse(token, head)), -kInfinity);
                for (std::int64_t i = 0; i < spec.geometry.v_head_dim; ++i) {
                  ASSERT_EQ(result.out(token, head, i), 0.0) << name_of(path) << ", sink " << with_sink;
                }
              }
            }
          }
        }
      }
    }
  }
}

/// NaN must come out as NaN: an answer of 0 and -inf would say that the row attended to nothing.
TEST(PathsEdge, NaNInWhatARowReadsMakesItsAnswerNaN) {
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    for (const Path path : kPaths) {
      for (const bool in_query : {true, false}) {
        CaseSpec spec;
        spec.compute = compute;
        spec.rule = SelectionRule::none();
        spec.requests = {{3, 70}, {2, 0}};
        AttentionCase problem(spec);
        if (!in_query) {
          problem.spoil(0);
        }
        Inputs inputs = problem.inputs();
        Tensor q(compute, {problem.tokens(), spec.geometry.num_heads, spec.geometry.qk_head_dim()});
        if (in_query) {
          // NaN everywhere in the first token's query, zeros elsewhere.
          std::fill_n(q.data(), spec.geometry.num_heads * spec.geometry.qk_head_dim() * size_of(compute),
                      std::byte{0xff});
          inputs.q = q.view();
        }
        OutputBuffer result = problem.output_buffer();
        test::run_plan(test::plan_path(problem, path), problem, inputs, result.outputs());
        EXPECT_TRUE(std::isnan(result.lse(0, 0))) << name_of(path) << ", in the query: " << in_query;
        EXPECT_TRUE(std::isnan(result.out(0, 0, 0))) << name_of(path) << ", in the query: " << in_query;
        const std::int64_t clean = in_query ? 1 : 3;
        EXPECT_TRUE(std::isfinite(result.lse(clean, 0))) << name_of(path);
        EXPECT_TRUE(std::isfinite(result.out(clean, 0, 0))) << name_of(path);
      }
    }
  }
}

TEST(PathsEdge, ARepeatedPositionCountsOnce) {
  for (const Path path : {Path::masked_mha, Path::topk_mqa}) {
    CaseSpec spec;
    spec.requests = {{1, 9}};
    spec.seed = test::fresh_seed();
    const AttentionCase problem(spec);
    OutputBuffer once = problem.output_buffer();
    OutputBuffer often = problem.output_buffer();
    run_with_constant_selection(spec, path, 4, 1, once);
    run_with_constant_selection(spec, path, 4, 70, often);
    EXPECT_EQ(once.bits(), often.bits()) << name_of(path);
    EXPECT_TRUE(std::isfinite(once.lse(0, 0)));
  }
}

TEST(PathsEdge, CountsOutsideTheWidthMeanTheNearerEnd) {
  for (const Path path : {Path::masked_mha, Path::topk_mqa}) {
    CaseSpec spec;
    spec.requests = {{4, 20}};
    spec.width = 5;
    spec.seed = test::fresh_seed();
    const AttentionCase problem(spec);
    const std::int32_t counts[] = {5, 6, std::numeric_limits<std::int32_t>::max(), -3};
    Inputs inputs = problem.inputs();
    inputs.selection.count = View<const std::int32_t>(counts, {4});
    OutputBuffer result = problem.output_buffer();
    test::run_plan(test::plan_path(problem, path), problem, inputs, result.outputs());
    const auto oracle = attention::oracle_rows(problem.attention(), problem.weights(), inputs, problem.queries(), 1);
    const auto comparison = test::compare(problem, result, oracle, test::tolerance_of(spec.compute));
    EXPECT_FALSE(comparison.failure) << *comparison.failure;
    EXPECT_EQ(static_cast<double>(result.lse(3, 0)), -kInfinity);
  }
}

TEST(PathsEdge, CoveredRowsNeedNoSelection) {
  const SelectionRule rules[] = {SelectionRule::none(), SelectionRule::lightning(40),
                                 SelectionRule::kpool(36, 4, true)};
  for (const SelectionRule& rule : rules) {
    CaseSpec spec;
    spec.rule = rule;
    spec.requests = {{7, 32}, {39, 0}};  // 39 keys: the last that kpool(36, 4, tail) covers
    spec.with_selection = false;
    spec.seed = test::fresh_seed();
    EXPECT_EQ(expect_oracle_on_every_path(AttentionCase(spec)), 3) << rule.to_string();
  }
  CaseSpec spec;
  spec.rule = SelectionRule::kpool(36, 4, false);  // covers single rows that see a multiple of 4 keys
  spec.requests = {{1, 35}, {1, 3}};
  spec.with_selection = false;
  spec.seed = test::fresh_seed();
  EXPECT_EQ(expect_oracle_on_every_path(AttentionCase(spec)), 3);
}

TEST(PathsEdge, AMixedBatchGivesTheOraclesAnswerAsRouted) {
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    CaseSpec spec;
    spec.geometry = {5, 96, 48, 16, 40};
    spec.compute = compute;
    spec.rule = SelectionRule::lightning(64);
    spec.requests = {{1, 0}, {10, 50}, {64, 0}, {0, 7}, {60, 20}, {1, 300}, {130, 3}};
    spec.with_sink = true;
    spec.gap = 2;
    spec.seed = test::fresh_seed();
    const AttentionCase problem(spec);
    const Plan routed = plan(problem.attention(), problem.batch());
    for (const RequestPlan& request : routed.requests()) {
      std::int64_t position = request.context_len;
      for (const Segment& segment : request.segments) {
        EXPECT_EQ(segment.begin, position);
        position = segment.end;
      }
      EXPECT_EQ(position, request.query_len == 0 ? request.context_len : request.context_len + request.query_len);
    }
    OutputBuffer result = problem.output_buffer();
    test::run_plan(routed, problem, problem.inputs(), result.outputs());
    expect_oracle(problem, result);
  }
}

TEST(PathsEdge, LseMayBeLeftOut) {
  CaseSpec spec;
  spec.rule = SelectionRule::none();
  spec.requests = {{5, 3}};
  spec.seed = test::fresh_seed();
  const AttentionCase problem(spec);
  for (const Path path : kPaths) {
    OutputBuffer result(problem.tokens(), spec.geometry.num_heads, spec.geometry.v_head_dim, spec.out, 1, false);
    test::run_plan(test::plan_path(problem, path), problem, problem.inputs(), result.outputs());
    expect_oracle(problem, result);
  }
}

/// A problem, its plan and everything attend() takes, to be spoilt one thing at a time.
struct Call {
  Plan plan;
  Weights weights;
  Inputs inputs;
  Outputs outputs;
  std::span<std::byte> workspace;
};

class Refusal : public testing::TestWithParam<Path> {
 protected:
  explicit Refusal(const CaseSpec& spec = usual_spec()) : problem_(spec) {}

  static CaseSpec usual_spec() {
    CaseSpec spec;
    spec.requests = {{3, 6}, {2, 0}};
    spec.rule = GetParam() == Path::dense_mha ? SelectionRule::none() : SelectionRule::opaque();
    spec.with_sink = true;
    return spec;
  }

  /// Expects an Error whose argument contains `argument`, and no output written.
  void refuses(const std::string& argument, const std::function<void(Call&)>& spoil) {
    const std::vector<std::uint32_t> before = result_.bits();
    test::GuardedWorkspace workspace(plan_.workspace_bytes() + 64);
    Call call{plan_, problem_.weights(), problem_.inputs(), result_.outputs(),
              workspace.span().first(static_cast<std::size_t>(plan_.workspace_bytes()))};
    spoil(call);
    try {
      attend(call.plan, call.weights, call.inputs, call.outputs, call.workspace);
      ADD_FAILURE() << "nothing was thrown about " << argument;
    } catch (const Error& error) {
      EXPECT_NE(error.argument().find(argument), std::string::npos) << error.what();
      EXPECT_FALSE(error.expected().empty());
      EXPECT_FALSE(error.actual().empty());
    }
    EXPECT_EQ(result_.bits(), before) << argument;
    workspace.expect_intact();
  }

  AttentionCase problem_;
  Plan plan_ = test::plan_path(problem_, GetParam());
  OutputBuffer result_ = problem_.output_buffer();
};

TEST_P(Refusal, OfShapesAndTypes) {
  const Geometry g = problem_.attention().geometry;
  const std::vector<float> floats(10'000);
  const std::vector<bfloat16> halves(10'000);
  std::vector<float> out(10'000);
  const std::int64_t T = problem_.tokens();
  refuses("q", [&](Call& c) { c.inputs.q = View<const float>(floats.data(), {T, g.num_heads, g.qk_head_dim() - 1}); });
  refuses("q", [&](Call& c) { c.inputs.q = View<const float>(floats.data(), {T, g.num_heads * g.qk_head_dim()}); });
  refuses("q", [&](Call& c) { c.inputs.q = View<const bfloat16>(halves.data(), {T, g.num_heads, g.qk_head_dim()}); });
  refuses("q", [&](Call& c) {
    c.inputs.q = ConstAnyView(floats.data(), DType::float32, 3, {T, g.num_heads, g.qk_head_dim(), 0}, {1, 5, 10, 0});
  });
  refuses("query_start", [&](Call& c) {
    c.inputs.q = c.inputs.q.slice(0, T - 1);
    c.outputs.out = c.outputs.out.slice(0, T - 1);
    c.outputs.lse = c.outputs.lse.slice(0, T - 1);
  });
  refuses("kv_b_proj", [&](Call& c) {
    c.weights.kv_b_proj = View<const float>(floats.data(), {g.num_heads * g.qk_nope_head_dim, g.kv_lora_rank});
  });
  refuses("kv_b_proj", [&](Call& c) {
    c.weights.kv_b_proj =
        View<const bfloat16>(halves.data(), {g.num_heads * (g.qk_nope_head_dim + g.v_head_dim), g.kv_lora_rank});
  });
  refuses("sink", [&](Call& c) { c.weights.sink = View<const float>(floats.data(), {g.num_heads + 1}); });
  refuses("out", [&](Call& c) { c.outputs.out = View<float>(out.data(), {T, g.num_heads, g.v_head_dim + 1}); });
  refuses("out", [&](Call& c) { c.outputs.out = View<float>(out.data(), {T - 1, g.num_heads, g.v_head_dim}); });
  refuses("out", [&](Call& c) {
    c.outputs.out = View<bfloat16>(reinterpret_cast<bfloat16*>(out.data()), {T, g.num_heads, g.v_head_dim});
  });
  refuses("out", [&](Call& c) {
    c.outputs.out = View<std::int32_t>(reinterpret_cast<std::int32_t*>(out.data()), {T, g.num_heads, g.v_head_dim});
  });
  refuses("lse", [&](Call& c) { c.outputs.lse = View<float>(out.data(), {T, g.num_heads + 1}); });
}

TEST_P(Refusal, OfLengthsAndPages) {
  // The case's requests: 3 + 6 and 2 + 0.
  const std::int32_t long_second[] = {9, 3};
  const std::int32_t negative[] = {-1, 2};
  const std::int32_t shorter_than_queries[] = {2, 2};
  const std::int32_t decreasing[] = {0, 6, 5};
  const std::int32_t late_start[] = {1, 3, 5};
  const std::int32_t moved_boundary[] = {0, 1, 5};  // in order, but not the exact lengths that were planned
  refuses("seq_len", [&](Call& c) { c.inputs.requests.seq_len = View<const std::int32_t>(long_second, {2}); });
  refuses("seq_len", [&](Call& c) { c.inputs.requests.seq_len = View<const std::int32_t>(negative, {2}); });
  refuses("seq_len", [&](Call& c) { c.inputs.requests.seq_len = View<const std::int32_t>(shorter_than_queries, {2}); });
  refuses("seq_len", [&](Call& c) { c.inputs.requests.seq_len = View<const std::int32_t>(long_second, {1}); });
  refuses("query_start", [&](Call& c) { c.inputs.requests.query_start = View<const std::int32_t>(decreasing, {3}); });
  refuses("query_start", [&](Call& c) { c.inputs.requests.query_start = View<const std::int32_t>(late_start, {3}); });
  refuses("seq_len", [&](Call& c) { c.inputs.requests.query_start = View<const std::int32_t>(moved_boundary, {3}); });
  refuses("query_start", [&](Call& c) { c.inputs.requests.query_start = View<const std::int32_t>(decreasing, {2}); });

  const auto pages = static_cast<std::int32_t>(problem_.inputs().cache.num_pages);
  for (const std::int32_t bad : {-1, pages, std::numeric_limits<std::int32_t>::max()}) {
    const std::int32_t table[] = {0, 1, bad, 3, 0, 0};  // the first request has three pages, the second one
    const std::int32_t second[] = {0, 1, 2, bad, 0, 0};
    refuses("block_table[0, 2]", [&](Call& c) {
      c.inputs.requests.block_table = View<const std::int32_t>(table, {2, 3});
    });
    refuses("block_table[1, 0]", [&](Call& c) {
      c.inputs.requests.block_table = View<const std::int32_t>(second, {2, 3});
    });
  }
  const std::int32_t narrow[] = {0, 1, 2, 3};
  refuses("block_table", [&](Call& c) { c.inputs.requests.block_table = View<const std::int32_t>(narrow, {2, 2}); });
  refuses("block_table", [&](Call& c) { c.inputs.requests.block_table = View<const std::int32_t>(narrow, {1, 4}); });
}

TEST_P(Refusal, OfCacheSelectionAndWorkspace) {
  refuses("cache", [](Call& c) { c.inputs.cache.page_size = 0; });
  refuses("cache", [](Call& c) { c.inputs.cache.row_stride -= 4; });
  refuses("cache", [](Call& c) { c.inputs.cache.row_stride += 1; });
  refuses("cache", [](Call& c) { c.inputs.cache.page_stride -= 4; });
  refuses("cache", [](Call& c) { c.inputs.cache.data = nullptr; });
  refuses("workspace", [](Call& c) { c.workspace = c.workspace.first(c.workspace.size() - 1); });
  refuses("workspace", [](Call& c) { c.workspace = {}; });
  refuses("workspace", [](Call& c) { c.workspace = {c.workspace.data() + 1, c.workspace.size()}; });
  test::GuardedWorkspace workspace(plan_.workspace_bytes() + 64);
  EXPECT_TRUE(test::throws_error(
      [&] { attend(plan_, problem_.weights(), problem_.inputs(), result_.outputs(), workspace.span().subspan(1)); },
      "workspace: expected an address divisible by 64, got an address 1 byte past such a one"));
  if (GetParam() == Path::dense_mha) {
    return;
  }
  const std::vector<std::int32_t> numbers(1000);
  const std::int64_t T = problem_.tokens();
  refuses("selection", [](Call& c) { c.inputs.selection = {}; });
  refuses("selection", [&](Call& c) {
    c.inputs.selection.index = View<const std::int32_t>(numbers.data(), {T - 1, 8});
  });
  refuses("selection", [&](Call& c) { c.inputs.selection.index = View<const std::int32_t>(numbers.data(), {T}); });
  refuses("selection", [&](Call& c) { c.inputs.selection.count = View<const std::int32_t>(numbers.data(), {T + 1}); });
}

/// Rows that every path can serve without a selection.
class RefusalForCoveredRows : public Refusal {
 protected:
  RefusalForCoveredRows() : Refusal(covered_spec()) {}

  static CaseSpec covered_spec() {
    CaseSpec spec = usual_spec();
    spec.rule = SelectionRule::none();
    return spec;
  }
};

/// A path takes memory for the map from slots to keys where the attention says that selections are in slots, and makes
/// the map where a selection says so.
TEST_P(RefusalForCoveredRows, OfASelectionInTheOtherSpaceThoughNothingReadsIt) {
  refuses("selection.space", [](Call& c) { c.inputs.selection.space = SelectionSpace::cache_slot; });
  refuses("selection.space", [](Call& c) {
    c.inputs.selection = {};
    c.inputs.selection.space = SelectionSpace::cache_slot;
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, Refusal, testing::ValuesIn(kPaths),
                         [](const auto& info) { return std::string(name_of(info.param)); });
INSTANTIATE_TEST_SUITE_P(Paths, RefusalForCoveredRows, testing::ValuesIn(kPaths),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace headrace
