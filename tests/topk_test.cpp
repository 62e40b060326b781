// SPDX-License-Identifier: Apache-2.0
#include "selection/topk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "support/random.h"

namespace headrace::selection {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::int32_t> top_k(const std::vector<float>& scores, std::int64_t k, test::Random* pieces = nullptr) {
  const auto capacity = static_cast<std::size_t>(TopK::capacity(k));
  std::vector<TopK::Entry> entries(capacity);
  std::vector<TopK::Entry> scratch(capacity);
  std::vector<std::int32_t> result(static_cast<std::size_t>(k));
  TopK best(k, entries.data(), scratch.data());
  const auto n = static_cast<std::int64_t>(scores.size());
  for (std::int64_t begin = 0; begin < n;) {
    const std::int64_t end = pieces == nullptr ? n : std::min(n, begin + 1 + pieces->below(100));
    best.offer(scores.data() + begin, end - begin, begin);
    begin = end;
  }
  result.resize(static_cast<std::size_t>(best.finish(result.data())));
  return result;
}

std::vector<std::int32_t> by_sorting(const std::vector<float>& scores, std::int64_t k) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = scores[static_cast<std::size_t>(a)];
    const float y = scores[static_cast<std::size_t>(b)];
    return std::isnan(y) ? !std::isnan(x) : x > y;
  });
  order.resize(std::min(order.size(), static_cast<std::size_t>(k)));
  std::sort(order.begin(), order.end());
  return order;
}

TEST(TopK, AgreesWithAStableSort) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE(testing::Message() << "HEADRACE_TEST_SEED=" << seed);
  test::Random random(seed);
  for (int round = 0; round < 3000; ++round) {
    std::vector<float> scores(static_cast<std::size_t>(random.below(400)));
    const std::int64_t levels = 1 + random.below(30);  // few levels: many ties
    const std::int64_t lowest = -(levels / 2);
    const bool special = random.chance(0.3);
    for (float& s : scores) {
      s = random.chance(0.5) ? random.normal() : static_cast<float>(lowest + random.below(levels));
      if (special && random.chance(0.3)) {
        const float values[] = {kNan, -kNan, kInf, -kInf, 0.0F, -0.0F, 1e-45F, -1e-45F};
        s = values[random.below(8)];
      }
    }
    const std::int64_t k = 1 + random.below(random.chance(0.5) ? 20 : 300);
    ASSERT_EQ(top_k(scores, k, &random), by_sorting(scores, k)) << "round " << round;
  }
}

TEST(TopK, LongRows) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE(testing::Message() << "HEADRACE_TEST_SEED=" << seed);
  test::Random random(seed);
  std::vector<float> scores(200000);
  for (float& s : scores) {
    s = std::floor(random.normal() * 50.0F);
  }
  EXPECT_EQ(top_k(scores, 2048, &random), by_sorting(scores, 2048));
  std::sort(scores.begin(), scores.end());  // each score may push out the ones before
  EXPECT_EQ(top_k(scores, 2048, &random), by_sorting(scores, 2048));
  std::reverse(scores.begin(), scores.end());
  EXPECT_EQ(top_k(scores, 2048, &random), by_sorting(scores, 2048));
}

TEST(TopK, EqualScoresTakeTheLowestIndices) {
  EXPECT_EQ(top_k(std::vector<float>(1000, 0.0F), 3), (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(top_k({1, 2, 2, 1, 2}, 2), (std::vector<std::int32_t>{1, 2}));
}

TEST(TopK, NegativeZeroEqualsZero) {
  EXPECT_EQ(top_k({-0.0F, 0.0F}, 1), (std::vector<std::int32_t>{0}));
  EXPECT_EQ(top_k({0.0F, -0.0F}, 1), (std::vector<std::int32_t>{0}));
}

TEST(TopK, NanRanksBelowNegativeInfinity) {
  EXPECT_EQ(top_k({kNan, -kInf, -kNan}, 1), (std::vector<std::int32_t>{1}));
  EXPECT_EQ(top_k({kNan, -kInf, -kNan}, 2), (std::vector<std::int32_t>{0, 1}));
}

TEST(TopK, FewerThanKAndNone) {
  EXPECT_EQ(top_k({3, 1, 2}, 5), (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_TRUE(top_k({}, 5).empty());
}

}  // namespace
}  // namespace headrace::selection
