// SPDX-License-Identifier: Apache-2.0
// Plans made anew for later steps: the same as fresh ones, in the memory that they have, and unchanged where refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "headrace/error.h"
#include "headrace/plan.h"
#include "support/counted_allocations.h"
#include "support/random.h"

namespace headrace {
namespace {

struct Lengths {
  std::vector<std::int32_t> query_len;
  std::vector<std::int32_t> seq_len;

  [[nodiscard]] Batch batch(bool exact) const { return {query_len, seq_len, exact}; }
};

/// Requests of which some have no query tokens and some equal the one before.
Lengths random_lengths(test::Random& random, std::int64_t requests, std::int64_t most) {
  Lengths lengths;
  for (std::int64_t b = 0; b < requests; ++b) {
    if (b > 0 && random.chance(0.3)) {
      lengths.query_len.push_back(lengths.query_len.back());
      lengths.seq_len.push_back(lengths.seq_len.back());
      continue;
    }
    const std::int64_t queries = random.chance(0.4) ? random.below(3) : random.below(most);
    lengths.query_len.push_back(static_cast<std::int32_t>(queries));
    lengths.seq_len.push_back(static_cast<std::int32_t>(queries + random.below(2 * most)));
  }
  return lengths;
}

Attention random_attention(test::Random& random) {
  const Geometry geometries[] = {{16, 512, 256, 0, 256}, {8, 512, 192, 64, 256}, {3, 64, 40, 8, 24}};
  const SelectionRule rules[] = {SelectionRule::none(), SelectionRule::opaque(), SelectionRule::lightning(200),
                                 SelectionRule::kpool(2048, 4, true), SelectionRule::kpool(200, 4, false)};
  Attention attention;
  attention.geometry = geometries[random.below(3)];
  attention.rule = rules[random.below(5)];
  attention.scale = 0.1;
  attention.compute = random.chance(0.5) ? DType::bfloat16 : DType::float32;
  attention.format = random.chance(0.5) ? CacheFormat::bfloat16 : CacheFormat::fp8;
  attention.space = random.chance(0.2) ? SelectionSpace::cache_slot : SelectionSpace::request_position;
  return attention;
}

Hints random_hints(test::Random& random, const Attention& attention) {
  Hints hints;
  if (random.chance(0.2)) {
    hints.force = kPaths[random.below(3)];
  }
  if (random.chance(0.5)) {
    // Under which long requests split where their covered rows end.
    hints.profile = Profile::nominal_cpu(attention.compute);
    hints.profile->name = "a name that is too long to be held without memory of its own";
    hints.profile->mha_gflops = hints.profile->mqa_gflops = 1.0;
    hints.profile->product_gflops = hints.profile->gather_mkeys = 1e9;
    hints.profile->mask_gkeys = hints.profile->bandwidth_gbytes = 1e9;
  }
  return hints;
}

/// Everything a plan says.
std::string text_of(const Plan& plan) {
  std::string text = plan.explain();
  text += plan.exact() ? "exact" : "bounds";
  for (const Path path : kPaths) {
    text += fmt::format(" {} {} {}", plan.blocking(path).query_slice, plan.blocking(path).context_block,
                        plan.kept_bytes(path));
  }
  for (const RequestPlan& request : plan.requests()) {
    text += fmt::format("\n{} {} {} {}", request.request, request.scoring_begin, request.skip_scoring,
                        request.predicted_ms);
    for (const Segment& segment : request.segments) {
      text += fmt::format(" {}: [{}, {}) {}", segment.request, segment.begin, segment.end, name_of(segment.path));
    }
  }
  return text;
}

/// The plan, or the error.
std::string fresh(const Attention& attention, const Batch& batch, const Limits& limits, const Hints& hints) {
  try {
    return text_of(plan(attention, batch, limits, hints));
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Remake, GivesWhatAFreshPlanIs) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  int refused = 0;
  int split = 0;
  for (int i = 0; i < 300 && !testing::Test::HasFailure(); ++i) {
    const Attention attention = random_attention(random);
    const Hints hints = random_hints(random, attention);
    Limits limits;
    limits.device.threads = 2;
    if (random.chance(0.5)) {
      limits.workspace_bytes = std::int64_t{1} << (18 + random.below(10));
    }
    std::optional<Plan> made;
    for (int step = 0; step < 8; ++step) {
      const Lengths lengths = random_lengths(random, random.below(12), random.chance(0.5) ? 300 : 5000);
      const Batch batch = lengths.batch(random.chance(0.5));
      const std::string expected = fresh(attention, batch, limits, hints);
      std::string before;
      try {
        if (!made) {
          made = plan(attention, batch, limits, hints);
        } else {
          before = text_of(*made);
          made->remake(batch);
        }
        EXPECT_EQ(text_of(*made), expected) << attention.rule.to_string();
        split += static_cast<int>(std::ranges::count_if(
            made->requests(), [](const RequestPlan& request) { return request.segments.size() == 2; }));
        const Plan copy = *made;
        made->refresh(batch);
        EXPECT_EQ(text_of(*made), text_of(copy)) << "a refresh to the lengths it was made for changes nothing";
      } catch (const Error& error) {
        ++refused;
        EXPECT_EQ(error.what(), expected);
        if (made) {
          EXPECT_EQ(text_of(*made), before);
        }
      }
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(split, 10);
}

TEST(Remake, RefusesAnEmptyPlan) {
  const std::int32_t one = 1;
  Plan empty;
  EXPECT_THROW(empty.remake({{&one, 1}, {&one, 1}}), Error);
}

TEST(Remake, TextsAreOfTheRequestsThereAre) {
  const std::int32_t lengths[] = {5, 6};
  const Plan made =
      plan(Attention{{2, 32, 16, 8, 16}, SelectionRule::none(), 0.2, DType::float32, CacheFormat::float32},
           {lengths, lengths});
  EXPECT_NE(made.explain().find(made.reason(1)), std::string::npos);
  EXPECT_EQ(made.alternatives(1).size(), 2U);
  for (const std::int64_t request : {-1, 2}) {
    EXPECT_THROW((void)made.reason(request), Error);
    EXPECT_THROW((void)made.alternatives(request), Error);
  }
}

class RemakeMemory : public testing::TestWithParam<std::int64_t> {};

TEST_P(RemakeMemory, IsAllocatedOnce) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  const std::int64_t requests = GetParam();
  std::vector<Lengths> steps(40);
  for (Lengths& lengths : steps) {
    lengths = random_lengths(random, requests, 9000);
  }
  const Attention attention{
      {16, 512, 256, 0, 256}, SelectionRule::kpool(2048, 4, true), 1.0 / 16.0, DType::bfloat16, CacheFormat::bfloat16};
  Hints hints;
  hints.profile = Profile::nominal_cpu(DType::bfloat16);
  hints.profile->name = "a name that is too long to be held without memory of its own";
  Plan made = plan(attention, steps[0].batch(true), {.device = {2}}, hints);
  made.remake(steps[1].batch(true));
  std::vector<double> microseconds;
  microseconds.reserve(steps.size());
  const std::size_t before = test::allocations;
  for (const Lengths& lengths : steps) {
    const auto start = std::chrono::steady_clock::now();
    made.remake(lengths.batch(true));
    microseconds.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    made.refresh(lengths.batch(false));
  }
  EXPECT_EQ(test::allocations, before);
  std::ranges::nth_element(microseconds, microseconds.begin() + 20);
  std::cout << requests << " requests: " << microseconds[20] << " us a plan\n";
  EXPECT_EQ(text_of(made), [&] {
    Plan fresh_plan = plan(attention, steps.back().batch(true), {.device = {2}}, hints);
    fresh_plan.refresh(steps.back().batch(false));
    return text_of(fresh_plan);
  }());
}

INSTANTIATE_TEST_SUITE_P(Requests, RemakeMemory, testing::Values(1, 64, 256, 1024));

}  // namespace
}  // namespace headrace
