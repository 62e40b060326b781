// SPDX-License-Identifier: Apache-2.0
//
// How the GPU's MHA paths cut their work: every row must meet every key it may attend to exactly once, in order, within
// what a pass may hold.
#include "attention/paths/mha_passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "support/random.h"

namespace headrace::attention {
namespace {

using mha::sm90::kQueryTile;

struct Problem {
  std::vector<RowsOnPath> rows;
  std::int64_t requests = 0;
  PassCapacity capacity;
  std::int64_t key_tile = 0;
  bool masked = false;
};

Problem random_problem(test::Random& random) {
  const auto between = [&](std::int64_t least, std::int64_t most) { return least + random.below(most - least + 1); };
  Problem problem;
  problem.key_tile = between(0, 1) == 0 ? 80 : 128;
  problem.masked = between(0, 1) == 0;
  const bool causal = between(0, 2) > 0;
  problem.requests = between(1, 6);
  for (std::int64_t request = 0; request < problem.requests; ++request) {
    if (between(0, 4) == 0) {
      continue;  // takes another path
    }
    RowsOnPath some;
    some.request = request;
    some.row_count = between(1, 700);
    some.first_position = between(0, 900);
    some.begin = between(0, 1) == 0 ? 0 : some.first_position;
    some.end = some.first_position + some.row_count;
    some.causal = causal;
    some.keys = causal ? some.end : some.end + between(0, 200);
    problem.rows.push_back(some);
  }
  problem.capacity = {.keys = problem.key_tile * between(1, 20), .slice_rows = kQueryTile * between(1, 8)};
  return problem;
}

/// What one row met: its key blocks in the order of the passes.
struct Met {
  std::vector<std::pair<std::int64_t, std::int64_t>> blocks;
  std::vector<bool> has_earlier;
  std::vector<bool> to_slice;
};

TEST(MhaPasses, EveryRowMeetsItsKeysOnceInOrder) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE(testing::Message() << "HEADRACE_TEST_SEED=" << seed);
  test::Random random(seed);
  MhaPasses result;  // one for all: nothing of the earlier ones may stay
  for (int i = 0; i < 400; ++i) {
    const Problem problem = random_problem(random);
    plan_mha_passes(problem.rows, problem.requests, problem.capacity, problem.key_tile, problem.masked, result);
    std::map<std::pair<std::int64_t, std::int64_t>, Met> met;  // by request and row
    for (const MhaPass& pass : result.passes) {
      EXPECT_LE(pass.keys, problem.capacity.keys);
      if (problem.masked || pass.has_earlier || pass.to_slice) {
        EXPECT_LE(pass.slice_rows, problem.capacity.slice_rows);
      }
      std::int64_t next_run_row = 0;
      for (std::int64_t r = pass.first_run; r < pass.first_run + pass.num_runs; ++r) {
        const auto& run = result.runs[static_cast<std::size_t>(r)];
        const auto& span = result.spans[static_cast<std::size_t>(pass.first_span + run.request - pass.first_request)];
        EXPECT_EQ(run.row, next_run_row);
        EXPECT_EQ(run.row, span.first_key);
        EXPECT_EQ(run.first, span.keys_begin);
        EXPECT_EQ(run.first + run.count, span.keys_end);
        EXPECT_TRUE(run.first % problem.key_tile == 0) << "key tiles depend on where a block begins";
        EXPECT_LE((run.count + problem.key_tile - 1) / problem.key_tile, pass.key_tiles);
        next_run_row += run.count;
      }
      EXPECT_EQ(next_run_row, pass.keys);
      std::vector<int> slice_rows(static_cast<std::size_t>(pass.slice_rows));
      std::int64_t last_position = std::numeric_limits<std::int64_t>::max();
      for (std::int64_t t = pass.first_tile; t < pass.first_tile + pass.num_tiles; ++t) {
        const auto& tile = result.tiles[static_cast<std::size_t>(t)];
        const auto& span = result.spans[static_cast<std::size_t>(pass.first_span + tile.request - pass.first_request)];
        const auto some = std::find_if(problem.rows.begin(), problem.rows.end(),
                                       [&](const RowsOnPath& rows) { return rows.request == tile.request; });
        ASSERT_NE(some, problem.rows.end());
        const std::int64_t first = tile.tile * kQueryTile;
        const std::int64_t position = some->first_position + span.first_row + first;
        EXPECT_LE(position, last_position) << "tiles of most keys go first";
        last_position = position;
        for (std::int64_t row = first; row < std::min<std::int64_t>(first + kQueryTile, span.row_count); ++row) {
          Met& of = met[{tile.request, span.first_row + row}];
          of.blocks.emplace_back(span.keys_begin, span.keys_end);
          of.has_earlier.push_back(pass.has_earlier);
          of.to_slice.push_back(pass.to_slice);
          ++slice_rows[static_cast<std::size_t>(span.first_slice_row + row)];
        }
      }
      EXPECT_LE(*std::max_element(slice_rows.begin(), slice_rows.end()), 1) << "two rows share a slice row";
    }
    for (const RowsOnPath& some : problem.rows) {
      for (std::int64_t row = 0; row < some.row_count; ++row) {
        const Met& of = met[{some.request, row}];
        std::int64_t key = 0;
        for (std::size_t b = 0; b < of.blocks.size(); ++b) {
          ASSERT_EQ(of.blocks[b].first, key);
          key = of.blocks[b].second;
          EXPECT_EQ(of.has_earlier[b], b > 0);
          EXPECT_EQ(of.to_slice[b], b + 1 < of.blocks.size());
        }
        ASSERT_GE(key, some.causal ? std::min(some.keys, some.first_position + row + 1) : some.keys);
        ASSERT_LE(key, some.keys);
      }
    }
    const std::int64_t rows =
        std::accumulate(problem.rows.begin(), problem.rows.end(), std::int64_t{0},
                        [](std::int64_t n, const RowsOnPath& some) { return n + some.row_count; });
    EXPECT_EQ(static_cast<std::int64_t>(met.size()), rows);
  }
}

TEST(MhaPasses, WhatFitsIsOnePass) {
  const RowsOnPath rows[] = {{.request = 0, .begin = 0, .end = 300, .row_count = 300, .keys = 300},
                             {.request = 1, .begin = 0, .end = 200, .row_count = 200, .keys = 200}};
  const auto passes = [&](const PassCapacity& capacity, bool masked) {
    MhaPasses result;
    plan_mha_passes(rows, 2, capacity, 80, masked, result);
    return result.passes.size();
  };
  EXPECT_EQ(passes({.keys = 500, .slice_rows = 640}, true), 1U);
  EXPECT_EQ(passes({.keys = 480, .slice_rows = 640}, true), 2U);
  EXPECT_EQ(passes({.keys = 500, .slice_rows = 512}, true), 2U);
  EXPECT_EQ(passes({.keys = 500, .slice_rows = 0}, false), 1U);
}

TEST(MhaPasses, NoRowsNoPasses) {
  MhaPasses result;
  plan_mha_passes({}, 3, {.keys = 80}, 80, false, result);
  EXPECT_TRUE(result.passes.empty());
}

}  // namespace
}  // namespace headrace::attention
