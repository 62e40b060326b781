// SPDX-License-Identifier: Apache-2.0
#include "selection_match.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace headrace::app {
namespace {

using Row = std::vector<std::int32_t>;

IndexerGeometry lightning(std::int64_t topk) {
  IndexerGeometry indexer;
  indexer.topk = topk;
  return indexer;
}

IndexerGeometry kpool(std::int64_t topk, std::int64_t pool, bool tail) {
  IndexerGeometry indexer = lightning(topk);
  indexer.kpool = true;
  indexer.pool = pool;
  indexer.tail = tail;
  return indexer;
}

const std::vector<float> kScores{1.0F, 5.0F, 3.0F, 4.0F, 2.0F};

TEST(SelectionMatch, TheSameInAnyOrder) {
  SelectionMatcher matcher(lightning(2));
  EXPECT_TRUE(matcher.add_row(4, kScores, Row{3, 1, -1}, Row{1, 3, -1}));
  EXPECT_EQ(matcher.result().share(), 1.0);
  EXPECT_EQ(matcher.result().ties, 0);
}

TEST(SelectionMatch, AKeyBelowTheKthDoesNotMatch) {
  SelectionMatcher matcher(lightning(2));
  EXPECT_FALSE(matcher.add_row(4, kScores, Row{1, 2}, Row{1, 3}));
  EXPECT_EQ(matcher.result().share(), 0.5);
  EXPECT_EQ(matcher.result().ties, 0);
}

TEST(SelectionMatch, EqualScoresAreTies) {
  SelectionMatcher matcher(lightning(2));
  EXPECT_FALSE(matcher.add_row(3, std::vector<float>{9.0F, 1.0F, 1.0F, 0.5F}, Row{0, 2}, Row{0, 1}));
  EXPECT_EQ(matcher.result().share(), 1.0);
  EXPECT_EQ(matcher.result().ties, 1);
}

TEST(SelectionMatch, ToleranceIsAMillionthOfTheLargest) {
  const std::vector<float> scores{100.0F, 1.0F, 1.0F - 0.5e-4F, 1.0F - 2e-4F};
  SelectionMatcher inside(lightning(2));
  (void)inside.add_row(3, scores, Row{0, 2}, Row{0, 1});
  EXPECT_EQ(inside.result().share(), 1.0);
  SelectionMatcher outside(lightning(2));
  (void)outside.add_row(3, scores, Row{0, 3}, Row{0, 1});
  EXPECT_EQ(outside.result().share(), 0.5);
}

TEST(SelectionMatch, AnotherNumberOfPositionsMatchesNothing) {
  SelectionMatcher matcher(lightning(2));
  EXPECT_FALSE(matcher.add_row(4, kScores, Row{1, -1}, Row{1, 3}));
  EXPECT_FALSE(matcher.add_row(4, kScores, Row{1, 3, 2}, Row{1, 3}));
  EXPECT_EQ(matcher.result().share(), 0.0);
}

TEST(SelectionMatch, AFutureKeyNeverMatches) {
  SelectionMatcher matcher(lightning(2));
  (void)matcher.add_row(2, std::vector<float>{1.0F, 2.0F, 0.0F}, Row{1, 3}, Row{0, 1});
  EXPECT_EQ(matcher.result().share(), 0.5);
}

TEST(SelectionMatch, PoolsCountByTheirScoreAndTheTailByTheRule) {
  // Nine keys: pools {0..3} and {4..7}, and an incomplete one with key 8. The budget takes one pool.
  const std::vector<float> scores{1.0F, 2.0F};
  SelectionMatcher same(kpool(4, 4, true));
  EXPECT_TRUE(same.add_row(8, scores, Row{4, 5, 6, 7, 8}, Row{4, 5, 6, 7, 8}));
  EXPECT_EQ(same.result().share(), 1.0);
  SelectionMatcher other(kpool(4, 4, true));
  EXPECT_FALSE(other.add_row(8, scores, Row{0, 1, 2, 3, 8}, Row{4, 5, 6, 7, 8}));
  EXPECT_DOUBLE_EQ(other.result().share(), 0.2);
  SelectionMatcher no_tail(kpool(4, 4, false));
  EXPECT_FALSE(no_tail.add_row(8, scores, Row{4, 5, 6, 8}, Row{4, 5, 6, 7}));
  EXPECT_DOUBLE_EQ(no_tail.result().share(), 0.75);
}

TEST(SelectionMatch, CoveredRowsDoNotCount) {
  SelectionMatcher matcher(lightning(4));
  EXPECT_TRUE(matcher.add_row(3, std::vector<float>{1.0F, 1.0F, 1.0F, 1.0F}, Row{0, 1, 2, 3}, Row{0, 1, 2, 3}));
  EXPECT_FALSE(matcher.add_row(3, std::vector<float>{1.0F, 1.0F, 1.0F, 1.0F}, Row{0, 1}, Row{0, 1, 2, 3}));
  EXPECT_EQ(matcher.result().rows, 0);
  EXPECT_EQ(matcher.result().positions, 0);
  (void)matcher.add_row(4, kScores, Row{0, 1, 2, 3}, Row{1, 2, 3, 4});
  EXPECT_EQ(matcher.result().rows, 1);
  EXPECT_EQ(matcher.result().share(), 0.75);
}

TEST(SelectionMatch, EqualScoresDecideNothing) {
  SelectionMatcher dead(lightning(2));
  (void)dead.add_row(4, std::vector<float>(5, 0.0F), Row{0, 1}, Row{0, 1});
  EXPECT_EQ(dead.result().share(), 1.0);
  EXPECT_EQ(dead.result().undecided_rows, 1);
  EXPECT_FALSE(dead.result().decided());
  SelectionMatcher alive(lightning(2));
  (void)alive.add_row(4, kScores, Row{1, 3}, Row{1, 3});
  (void)alive.add_row(4, std::vector<float>{9.0F, 0.0F, 0.0F, 0.0F, 0.0F}, Row{0, 1}, Row{0, 1});
  (void)alive.add_row(4, std::vector<float>{9.0F, 9.0F, 1.0F, 0.0F, 0.0F}, Row{0, 1}, Row{0, 1});
  EXPECT_EQ(alive.result().undecided_rows, 0);
  EXPECT_TRUE(alive.result().decided());
}

TEST(SelectionMatch, ManyTiesDecideNothing) {
  std::vector<float> scores(40, 0.0F);
  std::fill_n(scores.begin(), 12, 1.0F);
  Row theirs(20);
  Row ours(20);
  std::iota(theirs.begin(), theirs.end(), 0);
  std::iota(ours.begin(), ours.end(), 0);
  SelectionMatcher few(lightning(20));
  theirs.back() = 39;
  (void)few.add_row(39, scores, theirs, ours);
  EXPECT_TRUE(few.result().decided());
  SelectionMatcher many(lightning(20));
  theirs[18] = 38;
  (void)many.add_row(39, scores, theirs, ours);
  EXPECT_EQ(many.result().undecided_rows, 0);
  EXPECT_EQ(many.result().share(), 1.0);
  EXPECT_FALSE(many.result().decided());
}

TEST(SelectionMatch, ARowThatLeavesOutOneKeyMatchesByChance) {
  // 20 of 21 keys, and of each row the wrong one is left out.
  SelectionMatcher matcher(lightning(20));
  std::vector<float> scores(21);
  std::iota(scores.begin(), scores.end(), 1.0F);
  Row ours(20);
  std::iota(ours.begin(), ours.end(), 1);
  Row theirs(20);
  std::iota(theirs.begin(), theirs.end(), 0);
  (void)matcher.add_row(20, scores, theirs, ours);
  EXPECT_TRUE(matcher.result().beats_chance());  // one may miss
  (void)matcher.add_row(20, scores, theirs, ours);
  EXPECT_EQ(matcher.result().share(), 0.95);
  EXPECT_EQ(matcher.result().could_miss, 2);
  EXPECT_FALSE(matcher.result().beats_chance());
}

TEST(SelectionMatch, NothingRecordedIsAMatch) { EXPECT_EQ(SelectionMatcher(lightning(2)).result().share(), 1.0); }

}  // namespace
}  // namespace headrace::app
