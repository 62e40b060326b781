// SPDX-License-Identifier: Apache-2.0
// Coverage at its exact edges, plans made from upper bounds, and what plan() refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
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

Attention small_attention(const SelectionRule& rule) {
  return {{2, 32, 16, 8, 16}, rule, 0.2, DType::float32, CacheFormat::float32};
}

Hints forced(std::optional<Path> path) {
  Hints hints;
  hints.force = path;
  return hints;
}

RequestPlan plan_one(const SelectionRule& rule, std::int32_t query_len, std::int32_t seq_len, bool exact,
                     std::optional<Path> force = {}) {
  const Plan one = plan(small_attention(rule), {{&query_len, 1}, {&seq_len, 1}, exact}, {}, forced(force));
  return one.requests()[0];
}

bool dense_can_run(const SelectionRule& rule, std::int32_t query_len, std::int32_t seq_len, bool exact) {
  try {
    EXPECT_EQ(plan_one(rule, query_len, seq_len, exact, Path::dense_mha).path, Path::dense_mha);
    return true;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("dense_mha"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(rule.kind() == SelectionRule::Kind::opaque ? "opaque" : rule.to_string()),
              std::string::npos)
        << error.what();
    return false;
  }
}

/// At `keys` everything is covered, one key further it is not; with exact lengths or with bounds.
void expect_edge(const SelectionRule& rule, std::int32_t keys) {
  SCOPED_TRACE(rule.to_string() + " at " + std::to_string(keys));
  for (const bool exact : {false, true}) {
    for (const std::int32_t queries : {1, std::min(5, keys), keys}) {
      const RequestPlan covered = plan_one(rule, queries, keys, exact);
      EXPECT_TRUE(covered.skip_scoring);
      EXPECT_GE(covered.scoring_begin, keys);
      EXPECT_TRUE(dense_can_run(rule, queries, keys, exact));

      const RequestPlan beyond = plan_one(rule, queries, keys + 1, exact);
      EXPECT_FALSE(beyond.skip_scoring);
      EXPECT_EQ(beyond.scoring_begin, keys);  // the last row alone reads the selection
      EXPECT_NE(beyond.segments.back().path, Path::dense_mha);
      EXPECT_FALSE(dense_can_run(rule, queries, keys + 1, exact));
    }
  }
}

TEST(Coverage, EndsWhereTheRuleSays) {
  expect_edge(SelectionRule::lightning(2048), 2048);
  expect_edge(SelectionRule::kpool(2048, 4, true), 2051);
  expect_edge(SelectionRule::kpool(2048, 16, true), 2063);
  expect_edge(SelectionRule::kpool(2044, 4, true), 2047);  // 511 whole pools
  expect_edge(SelectionRule::kpool(2048, 1, true), 2048);
  expect_edge(SelectionRule::lightning(1), 1);
}

TEST(Coverage, WithoutATailIsOnlyOfRowsThatSeeWholePools) {
  const SelectionRule rule = SelectionRule::kpool(2048, 4, false);
  for (const std::int32_t keys : {4, 2044, 2048}) {
    EXPECT_TRUE(plan_one(rule, 1, keys, true).skip_scoring) << keys;
    EXPECT_TRUE(dense_can_run(rule, 1, keys, true)) << keys;
    EXPECT_FALSE(plan_one(rule, 1, keys, false).skip_scoring) << keys << ": the length is only a bound";
    EXPECT_FALSE(dense_can_run(rule, 1, keys, false)) << keys;
    EXPECT_FALSE(plan_one(rule, 2, keys, true).skip_scoring) << keys << ": the row before sees a part of a pool";
    EXPECT_FALSE(dense_can_run(rule, 2, keys, true)) << keys;
  }
  for (const std::int32_t keys : {1, 2, 3, 2047, 2049, 2051, 2052}) {
    EXPECT_FALSE(plan_one(rule, 1, keys, true).skip_scoring) << keys;
    EXPECT_FALSE(dense_can_run(rule, 1, keys, true)) << keys;
  }
  expect_edge(SelectionRule::kpool(64, 1, false), 64);  // pools of one key are whole
}

TEST(Coverage, NoneCoversAllAndOpaqueNothing) {
  for (const bool exact : {false, true}) {
    for (const std::int32_t keys : {1, 100, 100'000}) {
      EXPECT_TRUE(plan_one(SelectionRule::none(), 1, keys, exact).skip_scoring);
      EXPECT_TRUE(dense_can_run(SelectionRule::none(), 1, keys, exact));
      const RequestPlan opaque = plan_one(SelectionRule::opaque(), 1, keys, exact);
      EXPECT_FALSE(opaque.skip_scoring);
      EXPECT_LT(opaque.scoring_begin, keys);
      EXPECT_NE(opaque.path, Path::dense_mha);
      EXPECT_FALSE(dense_can_run(SelectionRule::opaque(), 1, keys, exact));
    }
  }
}

TEST(Coverage, IsOfEachRequestByItself) {
  const std::int32_t query_len[] = {2048, 2049, 1, 1, 0};
  const std::int32_t seq_len[] = {2048, 2049, 2048, 9000, 9000};
  const Plan mixed = plan(small_attention(SelectionRule::lightning(2048)), {query_len, seq_len, false});
  const bool skips[] = {true, false, true, false, true};
  for (std::size_t b = 0; b < 5; ++b) {
    EXPECT_EQ(mixed.requests()[b].skip_scoring, skips[b]) << b;
  }
}

TEST(Coverage, AlternativesSayWhyNot) {
  const std::int32_t query_len = 8;
  const std::int32_t seq_len = 4096;
  const Plan one = plan(small_attention(SelectionRule::lightning(2048)), {{&query_len, 1}, {&seq_len, 1}, true});
  EXPECT_EQ(one.alternatives(0).size(), 2U);
  for (const Alternative& other : one.alternatives(0)) {
    EXPECT_EQ(other.unmet.empty(), other.path != Path::dense_mha) << name_of(other.path);
  }
}

/// Upper bounds above a case's exact lengths.
struct Bounds {
  std::vector<std::int32_t> query_len;
  std::vector<std::int32_t> seq_len;

  Bounds(const AttentionCase& problem, test::Random& random) {
    for (const auto& request : problem.spec().requests) {
      const auto more = static_cast<std::int32_t>(random.below(5));
      query_len.push_back(static_cast<std::int32_t>(request.query_len) + more);
      seq_len.push_back(static_cast<std::int32_t>(request.seq_len()) + more +
                        static_cast<std::int32_t>(random.below(5)));
    }
  }
  [[nodiscard]] Batch batch() const { return {query_len, seq_len, false}; }
};

CaseSpec random_spec(test::Random& random) {
  CaseSpec spec;
  const SelectionRule rules[] = {SelectionRule::none(), SelectionRule::opaque(), SelectionRule::lightning(20),
                                 SelectionRule::kpool(18, 3, true), SelectionRule::kpool(18, 3, false)};
  spec.rule = rules[random.below(5)];
  spec.compute = random.chance(0.5) ? DType::float32 : DType::bfloat16;
  const std::int64_t n = 1 + random.below(4);
  for (std::int64_t i = 0; i < n; ++i) {
    spec.requests.push_back({random.below(30), random.below(25)});
  }
  spec.page_size = 1 + random.below(9);
  spec.space = random.chance(0.3) ? SelectionSpace::cache_slot : SelectionSpace::request_position;
  spec.with_count = random.chance(0.5);
  spec.with_sink = random.chance(0.5);
  spec.seed = random.bits();
  return spec;
}

TEST(Bounds, AboveTheExactLengthsGiveTheExactAnswer) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  int forced_runs[3] = {};
  for (int i = 0; i < 300 && !testing::Test::HasFailure(); ++i) {
    const AttentionCase problem(random_spec(random));
    const auto oracle = problem.oracle();
    const Bounds bounds(problem, random);
    for (const std::optional<Path> force : {std::optional<Path>(), std::optional(Path::dense_mha),
                                            std::optional(Path::masked_mha), std::optional(Path::topk_mqa)}) {
      std::optional<Plan> bounded;
      try {
        bounded = plan(problem.attention(), bounds.batch(), {.device = {1}}, forced(force));
      } catch (const Error&) {
        ASSERT_EQ(force, Path::dense_mha);  // the others take any batch
        continue;
      }
      forced_runs[force ? static_cast<int>(*force) : 0] += force ? 1 : 0;
      OutputBuffer result = problem.output_buffer();
      test::run_plan(*bounded, problem, problem.inputs(), result.outputs());
      const auto comparison = test::compare(problem, result, oracle, test::tolerance_of(problem.spec().compute));
      ASSERT_FALSE(comparison.failure) << *comparison.failure << "\n"
                                       << (force ? name_of(*force) : "routed") << "\n"
                                       << problem.spec();
    }
  }
  EXPECT_GT(forced_runs[0], 20) << "dense_mha is meant to run on many of the cases";
}

TEST(Limits, OfThreadsAreThoseOfMachines) {
  const Attention attention = AttentionCase(CaseSpec{}).attention();
  const std::array<std::int32_t, 1> length{5};
  for (const int threads : {-1, kMaxThreads + 1, 1'000'000, std::numeric_limits<int>::max()}) {
    Limits limits;
    limits.device.threads = threads;
    limits.max_tokens = 5;
    limits.max_seq_len = 5;
    const std::string message = "limits.device.threads: expected a number in [0, 1024]";
    EXPECT_TRUE(test::throws_error([&] { (void)plan(attention, {length, length, true}, limits); }, message)) << threads;
    EXPECT_TRUE(test::throws_error([&] { (void)workspace_bound(attention, limits); }, message)) << threads;
  }
  EXPECT_NO_THROW((void)plan(attention, {length, length, true}, {.device = {kMaxThreads}}));
}

TEST(WorkspaceBound, HoldsForEveryBatchWithinTheLimits) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  for (int i = 0; i < 400 && !testing::Test::HasFailure(); ++i) {
    const CaseSpec spec = random_spec(random);
    Attention attention = AttentionCase(spec).attention();
    attention.geometry.num_heads = 1 + random.below(80);
    Limits limits;
    limits.device.threads = 1 + static_cast<int>(random.below(3));
    limits.max_tokens = 1 + random.below(300);
    limits.max_seq_len = 1 + random.below(3000);
    if (random.chance(0.5)) {
      limits.workspace_bytes = (std::int64_t{1} << 20) * (4 + random.below(60));
    }
    limits.max_requests = random.chance(0.5) ? 1 + random.below(9) : 0;
    const std::int64_t bound = workspace_bound(attention, limits);
    const std::int64_t most =
        limits.max_requests > 0 ? limits.max_requests : std::min<std::int64_t>(limits.max_tokens, 9);
    std::vector<std::int32_t> query_len;
    std::vector<std::int32_t> seq_len;
    while (std::ssize(query_len) < most && random.chance(0.3)) {
      query_len.push_back(0);
      seq_len.push_back(static_cast<std::int32_t>(random.below(limits.max_seq_len + 1)));
    }
    for (std::int64_t left = limits.max_tokens; left > 0 && std::ssize(query_len) < most;) {
      const std::int64_t tokens = 1 + random.below(std::min(left, limits.max_seq_len));
      query_len.push_back(static_cast<std::int32_t>(tokens));
      seq_len.push_back(static_cast<std::int32_t>(tokens + random.below(limits.max_seq_len - tokens + 1)));
      left -= tokens;
    }
    for (const std::optional<Path> force :
         {std::optional<Path>(), std::optional(Path::masked_mha), std::optional(Path::topk_mqa)}) {
      const Plan made = plan(attention, {query_len, seq_len, random.chance(0.5)}, limits, forced(force));
      EXPECT_LE(made.workspace_bytes(), bound) << (force ? name_of(*force) : "routed") << "\n" << spec;
    }
  }
}

TEST(WorkspaceBound, NeedsLimitsAndPlansKeepThem) {
  const Attention attention = AttentionCase(CaseSpec{}).attention();
  EXPECT_THROW((void)workspace_bound(attention, {}), Error);
  Limits limits;
  limits.max_tokens = 4;
  limits.max_seq_len = 10;
  limits.workspace_bytes = 64;
  EXPECT_THROW((void)workspace_bound(attention, limits), Error);
  limits.workspace_bytes = Limits{}.workspace_bytes;
  const std::int32_t fits[] = {4, 10};
  const std::int32_t too_many[] = {5, 10};
  const std::int32_t too_long[] = {4, 11};
  EXPECT_NO_THROW((void)plan(attention, {{fits, 1}, {fits + 1, 1}}, limits));
  EXPECT_THROW((void)plan(attention, {{too_many, 1}, {too_many + 1, 1}}, limits), Error);
  EXPECT_THROW((void)plan(attention, {{too_long, 1}, {too_long + 1, 1}}, limits), Error);
}

TEST(Bounds, MustNotBeBelowTheExactLengths) {
  CaseSpec spec;
  spec.rule = SelectionRule::none();
  spec.requests = {{3, 5}};
  const AttentionCase problem(spec);
  for (const auto& [query_len, seq_len] : {std::pair<std::int32_t, std::int32_t>{3, 7}, {2, 8}}) {
    const Plan low = plan(problem.attention(), {{&query_len, 1}, {&seq_len, 1}, false});
    OutputBuffer result = problem.output_buffer();
    EXPECT_THROW(test::run_plan(low, problem, problem.inputs(), result.outputs()), Error);
  }
}

/// The error of a plan, or "" when there is none.
std::string refusal(const Attention& attention, std::vector<std::int32_t> query_len, std::vector<std::int32_t> seq_len,
                    const Limits& limits = {}) {
  try {
    static_cast<void>(plan(attention, {query_len, seq_len, true}, limits));
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(PlanRefuses, MalformedLengths) {
  const Attention attention = small_attention(SelectionRule::none());
  EXPECT_EQ(refusal(attention, {1}, {1}), "");
  EXPECT_NE(refusal(attention, {-1}, {1}).find("query_len[0]"), std::string::npos);
  EXPECT_NE(refusal(attention, {1, 3}, {1, 2}).find("seq_len_bound[1]"), std::string::npos);
  EXPECT_NE(refusal(attention, {1}, {-5}).find("seq_len_bound[0]"), std::string::npos);
  EXPECT_NE(refusal(attention, {1, 2}, {1}).find("seq_len_bound"), std::string::npos);
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  EXPECT_NE(refusal(attention, {kMost, kMost}, {kMost, kMost}), "");
}

TEST(PlanRefuses, ImpossibleAttention) {
  const auto spoilt = [](auto spoil) {
    Attention attention = small_attention(SelectionRule::none());
    spoil(attention);
    return refusal(attention, {1}, {1});
  };
  EXPECT_NE(spoilt([](Attention& a) { a.geometry.num_heads = 0; }), "");
  EXPECT_NE(spoilt([](Attention& a) { a.geometry.kv_lora_rank = -1; }), "");
  EXPECT_NE(spoilt([](Attention& a) { a.geometry.qk_rope_head_dim = 7; }), "");
  EXPECT_NE(spoilt([](Attention& a) { a.geometry.v_head_dim = std::numeric_limits<std::int64_t>::max(); }), "");
  // Beyond float32's normal numbers, or so large that running maxima would overflow.
  for (const double scale : {std::numeric_limits<double>::quiet_NaN(), 0.0, -1.0, 1e-50, 1e-40, 1e7}) {
    EXPECT_NE(spoilt([scale](Attention& a) { a.scale = scale; }), "") << scale;
  }
  EXPECT_EQ(spoilt([](Attention& a) { a.scale = 1e-30; }), "");
  EXPECT_NE(spoilt([](Attention& a) { a.compute = DType::int32; }), "");
  EXPECT_NE(spoilt([](Attention& a) { a.format = CacheFormat::fp8_ds_mla; }), "") << "R is not 512";
}

TEST(PlanRefuses, AWorkspaceBelowTheMinimumItStates) {
  CaseSpec spec;
  spec.rule = SelectionRule::none();
  spec.requests = {{70, 200}};
  const AttentionCase problem(spec);
  for (const Path path : kPaths) {
    const std::int64_t least = test::least_workspace(problem, path);
    ASSERT_GT(least, 0);
    EXPECT_LE(test::plan_path(problem, path, {.threads = 1, .workspace_limit = least}).workspace_bytes(), least);
    try {
      static_cast<void>(test::plan_path(problem, path, {.threads = 1, .workspace_limit = least - 1}));
      ADD_FAILURE() << name_of(path) << " was planned below its minimum";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(std::to_string(least)), std::string::npos) << error.what();
    }
  }
  EXPECT_NE(refusal(problem.attention(), {70}, {270}, {.workspace_bytes = 1, .device = {1}}).find("workspace"),
            std::string::npos);
  EXPECT_NE(refusal(problem.attention(), {70}, {270}, {.workspace_bytes = -1, .device = {1}}), "");
}

}  // namespace
}  // namespace headrace
