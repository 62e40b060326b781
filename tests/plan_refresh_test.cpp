// SPDX-License-Identifier: Apache-2.0
// Plans refreshed to later batches: what stays, what follows the lengths, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "headrace/error.h"
#include "support/compare.h"
#include "support/run_path.h"

namespace headrace {
namespace {

using test::AttentionCase;
using test::CaseSpec;
using test::OutputBuffer;
using test::RequestShape;

/// The lengths of a batch, with their memory.
struct Lengths {
  std::vector<std::int32_t> query_len;
  std::vector<std::int32_t> seq_len;

  Lengths() = default;
  explicit Lengths(const std::vector<RequestShape>& requests) {
    for (const RequestShape& request : requests) {
      add(request.query_len, request.seq_len());
    }
  }
  void add(std::int64_t queries, std::int64_t keys) {
    query_len.push_back(static_cast<std::int32_t>(queries));
    seq_len.push_back(static_cast<std::int32_t>(keys));
  }
  [[nodiscard]] Batch batch(bool exact) const { return {query_len, seq_len, exact}; }
};

std::string text_of(const Segments& segments) {
  std::string text;
  for (const Segment& segment : segments) {
    text += std::to_string(segment.request) + ": [" + std::to_string(segment.begin) + ", " +
            std::to_string(segment.end) + ") " + std::string(name_of(segment.path)) + "\n";
  }
  return text;
}

std::string segments_of(const Plan& plan) {
  std::string text;
  for (const RequestPlan& request : plan.requests()) {
    text += text_of(request.segments);
  }
  return text;
}

/// A case like `like`, with other requests.
AttentionCase with_requests(const CaseSpec& like, std::vector<RequestShape> requests, std::uint64_t seed) {
  CaseSpec spec = like;
  spec.requests = std::move(requests);
  spec.seed = seed;
  return AttentionCase(spec);
}

OutputBuffer run(const Plan& plan, const AttentionCase& problem) {
  OutputBuffer result = problem.output_buffer();
  test::run_plan(plan, problem, problem.inputs(), result.outputs());
  return result;
}

void expect_oracle(const AttentionCase& problem, const OutputBuffer& result) {
  const auto comparison = test::compare(problem, result, problem.oracle(), test::tolerance_of(problem.spec().compute));
  EXPECT_FALSE(comparison.failure) << *comparison.failure << "\n" << problem.spec();
}

/// The error of a refresh, or "" when there is none.
std::string refusal(Plan& plan, const Batch& later) {
  try {
    plan.refresh(later);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// ---- what follows the lengths ---------------------------------------------------------------------------------------

/// What a plan says of each request, apart from what was decided when it was made.
void expect_true_for(const Plan& refreshed, const Plan& fresh) {
  ASSERT_EQ(refreshed.requests().size(), fresh.requests().size());
  EXPECT_EQ(refreshed.exact(), fresh.exact());
  for (std::size_t b = 0; b < fresh.requests().size(); ++b) {
    const RequestPlan& now = refreshed.requests()[b];
    const RequestPlan& expected = fresh.requests()[b];
    EXPECT_EQ(now.query_len, expected.query_len) << b;
    EXPECT_EQ(now.context_len, expected.context_len) << b;
    EXPECT_EQ(now.skip_scoring, expected.skip_scoring) << b;
    EXPECT_EQ(now.scoring_begin, expected.scoring_begin) << b;
    std::int64_t position = now.context_len;
    for (const Segment& segment : now.segments) {
      EXPECT_EQ(segment.begin, position) << b;
      EXPECT_LT(segment.begin, segment.end) << b;
      position = segment.end;
    }
    EXPECT_EQ(position, now.context_len + now.query_len) << b;
    if (text_of(now.segments) == text_of(expected.segments)) {
      EXPECT_EQ(now.path, expected.path) << b;
      EXPECT_DOUBLE_EQ(now.predicted_ms, expected.predicted_ms) << b;
      EXPECT_EQ(refreshed.alternatives(now.request).size(), fresh.alternatives(now.request).size()) << b;
    }
  }
}

CaseSpec random_spec(test::Random& random) {
  CaseSpec spec;
  const SelectionRule rules[] = {SelectionRule::none(), SelectionRule::opaque(), SelectionRule::lightning(20),
                                 SelectionRule::kpool(18, 3, true), SelectionRule::kpool(18, 3, false)};
  spec.rule = rules[random.below(5)];
  spec.compute = random.chance(0.5) ? DType::float32 : DType::bfloat16;
  spec.page_size = 1 + random.below(9);
  spec.space = random.chance(0.3) ? SelectionSpace::cache_slot : SelectionSpace::request_position;
  spec.with_count = random.chance(0.5);
  spec.with_sink = random.chance(0.5);
  return spec;
}

std::vector<RequestShape> random_requests(test::Random& random) {
  std::vector<RequestShape> requests;
  const std::int64_t n = 1 + random.below(4);
  for (std::int64_t i = 0; i < n; ++i) {
    requests.push_back({random.below(40), random.below(90)});
  }
  return requests;
}

/// Requests with lengths within the given ones.
std::vector<RequestShape> shorter(const std::vector<RequestShape>& bounds, test::Random& random) {
  std::vector<RequestShape> requests;
  for (const RequestShape& bound : bounds) {
    const std::int64_t keys = random.below(bound.seq_len() + 1);
    const std::int64_t queries = random.below(std::min(bound.query_len, keys) + 1);
    requests.push_back({queries, keys - queries});
  }
  return requests;
}

/// Refreshes to `requests`, runs, and compares with the oracle and with a fresh plan. Returns whether the fresh plan
/// takes the same paths.
bool refresh_and_run(Plan& plan, const AttentionCase& problem, const Limits& limits, const Hints& hints, bool exact) {
  const Lengths lengths(problem.spec().requests);
  const std::int64_t workspace = plan.workspace_bytes();
  std::optional<Plan> fresh;
  try {
    fresh = headrace::plan(problem.attention(), lengths.batch(exact), limits, hints);
  } catch (const Error&) {
    EXPECT_EQ(hints.force, Path::dense_mha);
    EXPECT_NE(refusal(plan, lengths.batch(exact)), "") << problem.spec();
    return false;
  }
  const std::string refused = refusal(plan, lengths.batch(exact));
  if (!refused.empty()) {
    // Without a tail a rule covers only rows that see whole pools, so that a shorter request may be uncovered.
    const SelectionRule& rule = problem.attention().rule;
    EXPECT_TRUE(rule.kind() == SelectionRule::Kind::kpool && !rule.tail()) << refused;
    EXPECT_NE(refused.find("at which dense_mha still serves"), std::string::npos) << refused;
    return false;
  }
  EXPECT_EQ(plan.workspace_bytes(), workspace);
  expect_true_for(plan, *fresh);
  const OutputBuffer result = run(plan, problem);
  expect_oracle(problem, result);
  const bool same = segments_of(plan) == segments_of(*fresh);
  if (same) {
    EXPECT_EQ(result.bits(), run(*fresh, problem).bits()) << problem.spec();
  }
  return same;
}

TEST(Refresh, GivesTheAnswerOfAFreshPlan) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  int same_paths = 0;
  for (int i = 0; i < 150 && !testing::Test::HasFailure(); ++i) {
    const CaseSpec spec = random_spec(random);
    const std::vector<RequestShape> bounds = random_requests(random);
    const AttentionCase longest = with_requests(spec, bounds, random.bits());
    Limits limits;
    limits.device.threads = 1 + static_cast<int>(random.below(2));
    if (random.chance(0.5)) {
      limits.workspace_bytes = std::int64_t{200'000} + random.below(400'000);
    }
    Hints hints;
    const std::int64_t choice = random.below(4);
    hints.force = choice < 3 ? std::optional(kPaths[choice]) : std::nullopt;
    const bool exact = random.chance(0.5);
    std::optional<Plan> made;
    try {
      made = plan(longest.attention(), Lengths(bounds).batch(exact), limits, hints);
    } catch (const Error&) {
      continue;  // not covered, or more workspace than the limit
    }
    const std::string explanation = made->explain();
    for (int step = 0; step < 3; ++step) {
      const AttentionCase later = with_requests(spec, shorter(bounds, random), random.bits());
      same_paths += refresh_and_run(*made, later, limits, hints, random.chance(0.5)) ? 1 : 0;
    }
    made->refresh(Lengths(bounds).batch(exact));
    EXPECT_EQ(made->explain(), explanation);
    expect_oracle(longest, run(*made, longest));
  }
  EXPECT_GT(same_paths, 20) << "most fresh plans are meant to take the same paths";
}

/// A profile under which only keys cost anything, so that long requests split at the end of their covered rows.
Profile splitting_profile() {
  Profile profile = Profile::nominal_cpu(DType::float32);
  profile.mha_gflops = profile.mqa_gflops = 1.0;
  profile.product_gflops = profile.gather_mkeys = profile.mask_gkeys = profile.bandwidth_gbytes = 1e9;
  return profile;
}

TEST(Refresh, ClipsTheSegmentsOfASplitRequest) {
  CaseSpec spec;
  spec.rule = SelectionRule::lightning(64);
  Hints hints;
  hints.profile = splitting_profile();
  const std::vector<RequestShape> bounds{{600, 20}, {1, 0}};
  const Lengths lengths(bounds);
  const AttentionCase longest = with_requests(spec, bounds, 1);
  for (const bool exact : {false, true}) {
    Plan made = plan(longest.attention(), lengths.batch(exact), {.device = {1}}, hints);
    ASSERT_EQ(text_of(made.requests()[0].segments), "0: [20, 64) dense_mha\n0: [64, 620) topk_mqa\n");
    const std::pair<RequestShape, const char*> cases[] = {
        {{600, 0}, "0: [0, 64) dense_mha\n0: [64, 600) topk_mqa\n"},
        {{100, 64}, "0: [64, 164) topk_mqa\n"},
        {{1, 619}, "0: [619, 620) topk_mqa\n"},
        {{60, 4}, "0: [4, 64) dense_mha\n"},
        {{64, 1}, "0: [1, 64) dense_mha\n0: [64, 65) topk_mqa\n"},
        {{0, 620}, ""},
        {{600, 20}, "0: [20, 64) dense_mha\n0: [64, 620) topk_mqa\n"},
    };
    for (const auto& [shape, segments] : cases) {
      const AttentionCase later = with_requests(spec, {shape, {1, 0}}, 2);
      const Lengths now(later.spec().requests);
      made.refresh(now.batch(exact));
      EXPECT_EQ(text_of(made.requests()[0].segments), segments);
      EXPECT_EQ(made.requests()[0].skip_scoring, shape.query_len == 0 || shape.seq_len() <= 64);
      expect_oracle(later, run(made, later));
    }
  }
}

TEST(Refresh, ToBoundsTakesShorterLengthsStill) {
  CaseSpec spec;
  spec.rule = SelectionRule::lightning(64);
  Hints hints;
  hints.profile = splitting_profile();
  const Lengths bounds({{600, 20}, {7, 30}});
  const Lengths tighter({{300, 20}, {7, 20}});
  const AttentionCase problem = with_requests(spec, {{250, 12}, {5, 0}}, 3);
  Plan made = plan(problem.attention(), bounds.batch(false), {.device = {1}}, hints);
  made.refresh(tighter.batch(false));
  expect_oracle(problem, run(made, problem));
  // Between the bounds of the refresh and those of the plan.
  const AttentionCase longer = with_requests(spec, {{301, 12}, {5, 0}}, 4);
  EXPECT_THROW(run(made, longer), Error);
  made.refresh(bounds.batch(false));
  expect_oracle(longer, run(made, longer));
  made.refresh(tighter.batch(true));
  EXPECT_THROW(run(made, problem), Error) << "exact lengths are those and no others";
}

TEST(Refresh, ExplainsTheLaterLengths) {
  const Lengths bounds({{600, 20}});
  const Lengths later({{60, 4}});
  const AttentionCase problem = with_requests(CaseSpec{}, {{60, 4}}, 5);
  Plan made = plan(problem.attention(), bounds.batch(false));
  const double longer_ms = made.requests()[0].predicted_ms;
  made.refresh(later.batch(false));
  EXPECT_NE(made.explain().find("request 0: 60 + 4 -> "), std::string::npos) << made.explain();
  EXPECT_NE(made.explain().find("planned for 600 + 20"), std::string::npos) << made.explain();
  EXPECT_LT(made.requests()[0].predicted_ms, longer_ms);
  EXPECT_EQ(made.alternatives(0).size(), 2U);
}

// ---- what is refused ------------------------------------------------------------------------------------------------

TEST(RefreshRefuses, LengthsBeyondThePlansNamingTheRequest) {
  CaseSpec spec;
  spec.rule = SelectionRule::none();
  const std::vector<RequestShape> requests{{3, 5}, {4, 6}};
  const AttentionCase problem = with_requests(spec, requests, 6);
  const Lengths fits(requests);
  for (const bool exact : {false, true}) {
    Plan made = plan(problem.attention(), fits.batch(exact));
    const std::string before = made.explain();
    const auto refused = [&](const Lengths& lengths) { return refusal(made, lengths.batch(exact)); };
    EXPECT_NE(refused(Lengths({{3, 5}, {5, 0}})).find("request 1"), std::string::npos);
    EXPECT_NE(refused(Lengths({{3, 6}, {4, 6}})).find("request 0"), std::string::npos);
    EXPECT_NE(refused(Lengths({{3, 5}})).find("2 requests"), std::string::npos);
    EXPECT_NE(refused(Lengths({{3, 5}, {4, 6}, {0, 0}})).find("2 requests"), std::string::npos);
    EXPECT_NE(refused(Lengths()).find("2 requests"), std::string::npos);
    Lengths malformed(requests);
    malformed.seq_len[1] = 3;
    EXPECT_NE(refused(malformed).find("seq_len_bound[1]"), std::string::npos);
    malformed.query_len[0] = -1;
    EXPECT_NE(refused(malformed).find("query_len[0]"), std::string::npos);
    // After all that the plan is what it was.
    EXPECT_EQ(made.explain(), before);
    EXPECT_EQ(made.exact(), exact);
    expect_oracle(problem, run(made, problem));
    EXPECT_EQ(refused(Lengths({{2, 1}, {0, 0}})), "");
    EXPECT_NE(refused(Lengths({{3, 5}, {5, 0}})).find("request 1"), std::string::npos);
    EXPECT_EQ(refused(fits), "") << "shorter lengths are no new bounds";
  }
}

TEST(RefreshRefuses, RowsThatAreNoLongerCovered) {
  CaseSpec spec;
  spec.rule = SelectionRule::kpool(20, 4, false);
  const AttentionCase problem = with_requests(spec, {{1, 19}}, 7);
  const Lengths whole({{1, 19}});
  Hints hints;
  hints.force = Path::dense_mha;
  Plan dense = plan(problem.attention(), whole.batch(true), {}, hints);
  const std::string before = dense.explain();
  for (const auto& [keys, exact] : {std::pair<std::int64_t, bool>{19, true}, {17, true}, {16, false}, {20, false}}) {
    const Lengths part({{1, keys - 1}});
    const std::string why = refusal(dense, part.batch(exact));
    EXPECT_NE(why.find("seq_len_bound[0]"), std::string::npos) << why;
    EXPECT_NE(why.find("dense_mha"), std::string::npos) << why;
    EXPECT_EQ(dense.explain(), before);
  }
  const AttentionCase fewer = with_requests(spec, {{1, 15}}, 8);
  dense.refresh(Lengths({{1, 15}}).batch(true));
  expect_oracle(fewer, run(dense, fewer));
}

TEST(Refresh, ToExactLengthsMayProveMoreCovered) {
  CaseSpec spec;
  spec.rule = SelectionRule::kpool(20, 4, false);
  const AttentionCase problem = with_requests(spec, {{1, 15}}, 9);
  Plan made = plan(problem.attention(), Lengths({{1, 19}}).batch(false));
  EXPECT_FALSE(made.requests()[0].skip_scoring);
  made.refresh(Lengths({{1, 15}}).batch(true));
  EXPECT_TRUE(made.requests()[0].skip_scoring);
  expect_oracle(problem, run(made, problem));
  made.refresh(Lengths({{1, 15}}).batch(false));
  EXPECT_FALSE(made.requests()[0].skip_scoring);
}

}  // namespace
}  // namespace headrace
