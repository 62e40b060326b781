// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "step.h"

namespace headrace::app {
namespace {

using Pieces = std::vector<Piece>;

const std::vector<RequestSpec> kMixed{{10, 0}, {1, 100}, {0, 5}, {7, 3}};

TEST(Steps, AWholeBatchIsOneStep) {
  EXPECT_EQ(query_steps(kMixed, 0), 1);
  EXPECT_EQ(query_pieces(kMixed, 0, 0), (Pieces{{0, 0, 10}, {1, 100, 101}, {2, 5, 5}, {3, 3, 10}}));
}

TEST(Steps, ChunksAdvanceTogether) {
  EXPECT_EQ(query_steps(kMixed, 4), 3);
  EXPECT_EQ(query_pieces(kMixed, 4, 0), (Pieces{{0, 0, 4}, {1, 100, 101}, {2, 5, 5}, {3, 3, 7}}));
  EXPECT_EQ(query_pieces(kMixed, 4, 1), (Pieces{{0, 4, 8}, {3, 7, 10}}));
  EXPECT_EQ(query_pieces(kMixed, 4, 2), (Pieces{{0, 8, 10}}));
}

TEST(Steps, ContextIsCutInOrder) {
  EXPECT_EQ(context_steps(kMixed, 60), (std::vector<Pieces>{{{1, 0, 60}}, {{1, 60, 100}, {2, 0, 5}, {3, 0, 3}}}));
  EXPECT_TRUE(context_steps({{5, 0}}, 60).empty());
}

TEST(PageTables, GiveEveryTokenASlotOfItsOwn) {
  const std::vector<RequestSpec> batch{{100, 0}, {1, 64}, {0, 0}, {63, 1}};
  const PageTable table(batch, std::random_device{}());
  EXPECT_EQ(table.num_pages(), 2 + 2 + 0 + 1);
  std::set<std::int64_t> slots;
  std::int64_t tokens = 0;
  for (std::size_t b = 0; b < batch.size(); ++b) {
    for (std::int64_t p = 0; p < batch[b].seq_len(); ++p) {
      const std::int64_t slot = table.slot(static_cast<std::int64_t>(b), p);
      EXPECT_GE(slot, 0);
      EXPECT_LT(slot, table.num_pages() * PageTable::kPageSize);
      slots.insert(slot);
      ++tokens;
    }
  }
  EXPECT_EQ(static_cast<std::int64_t>(slots.size()), tokens);
}

TEST(Steps, DescribeTheirRequests) {
  const PageTable table(kMixed, 3);
  const Step step(table, query_pieces(kMixed, 4, 1));
  EXPECT_EQ(step.tokens(), 7);
  const Requests requests = step.requests();
  EXPECT_EQ(requests.query_start.dim(0), 3);
  EXPECT_EQ(requests.query_start(1), 4);
  EXPECT_EQ(requests.query_start(2), 7);
  EXPECT_EQ(requests.seq_len(0), 8);
  EXPECT_EQ(requests.seq_len(1), 10);
  EXPECT_EQ(step.positions()(0), 4);
  EXPECT_EQ(step.positions()(6), 9);
  EXPECT_EQ(step.slots()(6), table.slot(3, 9));
  EXPECT_EQ(requests.block_table(1, 0), table.slot(3, 0) / PageTable::kPageSize);
}

TEST(HiddenStates, DoNotDependOnTheStep) {
  const PageTable table(kMixed, 3);
  const Step whole(table, query_pieces(kMixed, 0, 0));
  const Step second(table, query_pieces(kMixed, 4, 1));
  const Tensor all = random_hidden(whole, 24, DType::float32, 5, 2, 2);
  const Tensor part = random_hidden(second, 24, DType::float32, 5, 2, 1);
  // Request 0's tokens 4..8 are rows 4.. of all; request 3's tokens 7..10 are its rows 15.. (after 10 + 1 + 0 + 4).
  const std::size_t row = 24 * sizeof(float);
  EXPECT_EQ(std::memcmp(part.data(), all.data() + 4 * row, 4 * row), 0);
  EXPECT_EQ(std::memcmp(part.data() + 4 * row, all.data() + 15 * row, 3 * row), 0);
  EXPECT_NE(std::memcmp(all.data(), all.data() + row, row), 0);
}

bool holds(const std::vector<std::int64_t>& rows, std::int64_t row) {
  return std::binary_search(rows.begin(), rows.end(), row);
}

TEST(RowsToCheck, AllOfAShortRequest) {
  EXPECT_EQ(rows_to_check({5, 100}, {}, 64, 0), (std::vector<std::int64_t>{100, 101, 102, 103, 104}));
  EXPECT_TRUE(rows_to_check({0, 100}, {}, 64, 0).empty());
}

TEST(RowsToCheck, TheEdgesOfALongOne) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const std::vector<std::int64_t> rows = rows_to_check({4000, 1000}, {0, 2048}, 64, seed);
  EXPECT_EQ(rows.size(), 64U);
  EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
  EXPECT_EQ(rows.front(), 1000);
  EXPECT_EQ(rows.back(), 4999);
  EXPECT_TRUE(holds(rows, 2047));
  EXPECT_TRUE(holds(rows, 2048));
}

TEST(RowsToCheck, BothSidesOfEveryBoundaryWhereThereIsRoom) {
  // Pages begin at 64 and 128, tiles at 30 + 64 and 30 + 128, chunks at 30 + 50 and 30 + 100 and 30 + 150.
  const std::vector<std::int64_t> rows = rows_to_check({160, 30}, {50, 0}, 64, 1);
  for (const std::int64_t edge : {64, 128, 94, 158, 80, 130, 180}) {
    EXPECT_TRUE(holds(rows, edge - 1)) << edge;
    EXPECT_TRUE(holds(rows, edge)) << edge;
  }
}

TEST(RelativeError, EdgesAreDecided) {
  EXPECT_EQ(relative_error(0.0, 0.0), 0.0);
  EXPECT_EQ(relative_error(4.0, 16.0), 0.5);
  EXPECT_TRUE(std::isinf(relative_error(1.0, 0.0)));
  EXPECT_TRUE(std::isinf(relative_error(std::nan(""), 1.0)));
}

TEST(RoundingAllowance, GrowsWithTheProductsOfScores) {
  EXPECT_EQ(rounding_allowance(0.0), 1.0);
  EXPECT_EQ(rounding_allowance(3.0), 1.0);
  EXPECT_EQ(rounding_allowance(12.0), 4.0);
  // Of keys that are no numbers: their error is infinite, and stays so.
  EXPECT_EQ(rounding_allowance(std::nan("")), 1.0);
  EXPECT_EQ(rounding_allowance(std::numeric_limits<double>::infinity()), 1.0);
}

}  // namespace
}  // namespace headrace::app
