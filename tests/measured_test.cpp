// SPDX-License-Identifier: Apache-2.0
//
// What gpu_bench says of its measurements: FLOPs by the formulas of docs/paths.md, written out here.
#include "gpu/bench/measured.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <vector>

namespace headrace::bench {
namespace {

constexpr double kHeads = 16.0;
constexpr double kRank = 512.0;
constexpr double kNope = 128.0;
constexpr double kRope = 64.0;
constexpr double kValue = 256.0;
constexpr double kProducts = 2.0 * kHeads * (kNope + kValue) * kRank;  // of a key up-projected, or a row absorbed
constexpr double kMhaPair = 2.0 * kHeads * (kNope + kRope + kValue);
constexpr double kMqaPair = 2.0 * kHeads * (2.0 * kRank + kRope);

Attention attention_with(const SelectionRule& rule) {
  Attention attention;
  attention.geometry = {16, 512, 128, 64, 256};
  attention.rule = rule;
  attention.scale = 0.07;
  return attention;
}

Plan plan_of(const SelectionRule& rule, std::span<const std::int32_t> query_len, std::span<const std::int32_t> seq_len,
             std::optional<Path> force) {
  Hints hints;
  hints.force = force;
  return plan(attention_with(rule), {query_len, seq_len, true}, {}, hints);
}

TEST(NeededFlops, DenseTakesEveryCausalPairAndUpProjectsEachRequestsKeysOnce) {
  constexpr std::array<std::int32_t, 2> query_len{4, 2};
  constexpr std::array<std::int32_t, 2> seq_len{4, 7};
  const Plan made = plan_of(SelectionRule::none(), query_len, seq_len, Path::dense_mha);
  constexpr double kPairs = (1 + 2 + 3 + 4) + (6 + 7);
  EXPECT_DOUBLE_EQ(needed_flops(made, {}), kProducts * (4 + 7) + kMhaPair * kPairs);
}

TEST(NeededFlops, HiddenPairsOfAMaskAreNotNeeded) {
  constexpr std::array<std::int32_t, 2> query_len{3, 2};
  constexpr std::array<std::int32_t, 2> seq_len{3, 9};
  constexpr std::array<std::int32_t, 5> count{1, 2, 2, 1, 2};
  const Plan made = plan_of(SelectionRule::opaque(2), query_len, seq_len, Path::masked_mha);
  EXPECT_DOUBLE_EQ(needed_flops(made, count), kProducts * (3 + 9) + kMhaPair * (1 + 2 + 2 + 1 + 2));
}

TEST(NeededFlops, TopkTakesSelectedPairsOverLatentsAndAbsorbsRows) {
  constexpr std::array<std::int32_t, 2> query_len{3, 2};
  constexpr std::array<std::int32_t, 2> seq_len{3, 9};
  constexpr std::array<std::int32_t, 5> count{1, 2, 2, 1, 2};
  const Plan made = plan_of(SelectionRule::opaque(2), query_len, seq_len, Path::topk_mqa);
  EXPECT_DOUBLE_EQ(needed_flops(made, count), kProducts * (3 + 2) + kMqaPair * (1 + 2 + 2 + 1 + 2));
}

TEST(NeededFlops, EachSegmentOfASplitRequestCountsAsItsPathDoes) {
  constexpr std::int32_t kTokens = 16384;
  constexpr std::int64_t kTopk = 2048;
  const std::array<std::int32_t, 1> tokens{kTokens};
  const Plan made = plan_of(SelectionRule::lightning(kTopk), tokens, tokens, std::nullopt);
  const Segments& segments = made.requests()[0].segments;
  ASSERT_EQ(segments.size(), 2U);
  ASSERT_EQ(segments[0].path, Path::dense_mha);
  ASSERT_EQ(segments[1].path, Path::topk_mqa);
  std::vector<std::int32_t> count;
  count.reserve(kTokens);
  for (std::int32_t position = 0; position < kTokens; ++position) {
    count.push_back(std::min<std::int32_t>(position + 1, kTopk));
  }
  const double dense_pairs = 0.5 * kTopk * (kTopk + 1.0);
  const double later_rows = kTokens - kTopk;
  EXPECT_DOUBLE_EQ(needed_flops(made, count), kProducts * (kTopk + later_rows) + kMhaPair * dense_pairs +
                                                  kMqaPair * later_rows * static_cast<double>(kTopk));
}

TEST(QuartilesOf, InterpolatesBetweenSortedValues) {
  const Quartiles four = quartiles_of({4.0, 1.0, 3.0, 2.0});
  EXPECT_DOUBLE_EQ(four.low, 1.75);
  EXPECT_DOUBLE_EQ(four.median, 2.5);
  EXPECT_DOUBLE_EQ(four.high, 3.25);
  const Quartiles one = quartiles_of({7.0});
  EXPECT_EQ(one.low, 7.0);
  EXPECT_EQ(one.median, 7.0);
  EXPECT_EQ(one.high, 7.0);
}

TEST(RatioText, SaysWithinNoiseUnlessTheRangesAreApart) {
  const Quartiles one{1.9, 2.0, 2.1};
  EXPECT_EQ(ratio_text({0.9, 1.0, 1.1}, one), "0.500");
  EXPECT_EQ(ratio_text(one, {0.9, 1.0, 1.1}), "2.000");
  EXPECT_EQ(ratio_text({1.8, 1.96, 1.95}, one), "0.980, within noise");
  EXPECT_EQ(ratio_text({1.7, 1.8, 1.9}, one), "0.900, within noise");  // they touch
}

TEST(RateText, HasNoRateWhereNothingWasCounted) {
  EXPECT_EQ(rate_text(0.0, 3e9, 10.0), "300.0 TFLOP/s");
  EXPECT_EQ(rate_text(5e6, 0.0, 10.0), "500.0 GB/s");
  EXPECT_EQ(rate_text(0.0, 0.0, 10.0), "-");
}

}  // namespace
}  // namespace headrace::bench
