// SPDX-License-Identifier: Apache-2.0
#include "recorded_selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace headrace::app {
namespace {

using Rows = std::vector<std::vector<std::int32_t>>;

Tensor matrix(const Rows& rows) {
  Tensor tensor(DType::int32, {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(rows.front().size())});
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::copy(rows[row].begin(), rows[row].end(), tensor.view_as<std::int32_t>().at(static_cast<std::int64_t>(row)));
  }
  return tensor;
}

Rows rows_of(const Tensor& tensor) {
  Rows rows;
  for (std::int64_t row = 0; row < tensor.dim(0); ++row) {
    const std::int32_t* const begin = tensor.view_as<std::int32_t>().at(row);
    rows.emplace_back(begin, begin + tensor.dim(1));
  }
  return rows;
}

TEST(RecordedSelections, AreReadAsTheContractSays) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const RecordedSelection read = read_selection(matrix({{-1, 0, -1, 1, -1},      // a future key
                                                        {1, 1, 0, -1, 1},        // repeats
                                                        {-1, -1, -1, -1, 2},     // padding before
                                                        {-7, kMost, 3, 9, 0},    // out of range
                                                        {-1, -1, -1, -1, -1}}),  // nothing
                                                SelectionRule::lightning(2));
  EXPECT_EQ(rows_of(read.index), (Rows{{0, -1}, {0, 1}, {2, -1}, {0, 3}, {-1, -1}}));
  EXPECT_EQ(read.wide.rows, 0);
  EXPECT_FALSE(read.wide.first.has_value());
}

TEST(RecordedSelections, NarrowOnesGetTheRulesWidth) {
  const RecordedSelection read = read_selection(matrix({{0}, {1}}), SelectionRule::lightning(3));
  EXPECT_EQ(rows_of(read.index), (Rows{{0, -1, -1}, {1, -1, -1}}));
}

TEST(RecordedSelections, RowsThatSelectMoreThanTheRuleAreToldAndKept) {
  const Tensor recorded = matrix({{0, -1, -1}, {0, 1, -1}, {0, 1, 2}, {3, 1, 0}});
  const RecordedSelection read = read_selection(recorded, SelectionRule::lightning(2));
  EXPECT_EQ(rows_of(read.index), (Rows{{0, -1, -1}, {0, 1, -1}, {0, 1, 2}, {0, 1, 3}}));
  EXPECT_EQ(read.wide.rows, 2);
  EXPECT_EQ(read.wide.first, 2);
}

TEST(RecordedSelections, PoolsAndTheirTailDecideWhatIsTooMuch) {
  // Row 6 sees a complete pool and three keys of the next: seven keys with the tail, four without.
  Rows rows;
  for (std::int32_t row = 0; row < 7; ++row) {
    rows.push_back({0, 1, 2, 3, 4, 5, 6});
  }
  const Tensor recorded = matrix(rows);
  EXPECT_EQ(read_selection(recorded, SelectionRule::kpool(4, 4, true)).wide.rows, 0);
  const NotedRows without_tail = read_selection(recorded, SelectionRule::kpool(4, 4, false)).wide;
  EXPECT_EQ(without_tail.rows, 6);
  EXPECT_EQ(without_tail.first, 0);
}

TEST(RecordedSelections, AgreeWhereTheKeysAreTheSame) {
  const Tensor one = matrix({{0, -1, -1}, {1, 0, -1}, {2, -1, 0}});
  const Tensor other = matrix({{0, 0, 2, -1}, {0, 1, 1, -1}, {2, 1, -1, -1}});
  EXPECT_EQ(rows_that_agree(one, other), (std::vector<bool>{true, true, false}));
}

}  // namespace
}  // namespace headrace::app
