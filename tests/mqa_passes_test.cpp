// SPDX-License-Identifier: Apache-2.0
//
// How the GPU's topk_mqa cuts its work: whatever the lengths turn out to be, every row must be in exactly one tile,
// with room for its keys, within what a slice, a stage and the workspace may hold.
#include "attention/paths/mqa_passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "attention/paths/mqa_blocking.h"
#include "support/random.h"

namespace headrace::attention {
namespace {

constexpr std::int64_t kMuch = std::int64_t{1} << 60;

/// A batch as a plan bounds it; a request takes one other path for its first rows, or for all, or none.
struct Problem {
  Attention attention;
  std::int64_t group = 0;
  std::int64_t requests = 0;
  std::vector<RowsOnPath> rows;
  std::vector<std::int64_t> query_len;  ///< of each of `rows`
  std::vector<std::int64_t> seq_len;
  Extents extents;

  [[nodiscard]] MqaPasses plan(const Blocking& blocking) const {
    std::vector<RowsOnPath> some = rows;
    for (std::size_t r = 0; r < some.size(); ++r) {
      some[r].converts = converts(blocking)[r];
    }
    MqaPasses passes;
    plan_mqa_passes(some, requests, group, {.tiles = blocking.query_slice / group, .keys = blocking.context_block},
                    passes);
    return passes;
  }
  [[nodiscard]] std::vector<bool> converts(const Blocking& blocking) const {
    std::vector<bool> result;
    for (const RowsOnPath& some : rows) {
      result.push_back(converts_keys(attention, blocking, some.row_count, some.keys));
    }
    return result;
  }
  [[nodiscard]] bool converts_request(std::int64_t request, const Blocking& blocking) const {
    const auto some = std::ranges::find(rows, request, &RowsOnPath::request);
    return converts(blocking)[static_cast<std::size_t>(some - rows.begin())];
  }
  [[nodiscard]] std::int64_t bytes(const Blocking& blocking) const {
    PathArenas arenas;
    const MqaMemory memory(arenas, attention, extents, blocking);
    return arenas.scratch.used();
  }
};

class MqaPassesTest : public testing::Test {
 protected:
  std::int64_t between(std::int64_t least, std::int64_t most) { return least + random_.below(most - least + 1); }

  SelectionRule random_rule() {
    switch (between(0, 4)) {
      case 0:
        return SelectionRule::none();
      case 1:
        return SelectionRule::lightning(between(1, 300));
      case 2: {
        const std::int64_t pool = between(1, 64);
        return SelectionRule::kpool(pool * between(1, 300 / pool), pool, between(0, 1) == 0);
      }
      case 3:
        return SelectionRule::opaque(between(1, 300));
      default:
        return SelectionRule::opaque();
    }
  }

  Problem random_problem() {
    constexpr std::int64_t kHeads[] = {1, 2, 3, 4, 5, 8, 12, 16, 20, 24, 32, 33, 40, 64, 65, 128};
    constexpr CacheFormat kFormats[] = {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8,
                                        CacheFormat::fp8_ds_mla};
    Problem problem;
    problem.attention.geometry = {kHeads[between(0, 15)], 512, 128, 64 * between(0, 1), 256};
    problem.attention.rule = random_rule();
    problem.attention.format = kFormats[between(0, 3)];
    problem.attention.space = between(0, 3) == 0 ? SelectionSpace::cache_slot : SelectionSpace::request_position;
    problem.group = mqa::group_of(problem.attention.geometry.num_heads);
    problem.requests = between(1, 6);
    const bool mixed = between(0, 1) == 0;
    const std::int64_t most_rows = between(0, 2) == 0 ? 3 : 400;
    problem.extents.requests = problem.requests;
    for (std::int64_t request = 0; request < problem.requests; ++request) {
      add_request(problem, request, most_rows, mixed ? between(0, 2) : 0);
    }
    return problem;
  }

  /// @param others  0: no row takes another path, 1: the first rows do, 2: all do
  void add_request(Problem& problem, std::int64_t request, std::int64_t most_rows, std::int64_t others) {
    const std::int64_t query_len = between(1, between(0, 3) == 0 ? 3 : most_rows);
    const std::int64_t context_len = between(0, 900);
    const std::int64_t seq_len = query_len + context_len;
    if (others == 2) {
      problem.extents.other_rows += query_len;
      return;
    }
    const std::int64_t split = others == 1 ? context_len + between(0, query_len - 1) : 0;
    problem.extents.other_rows += others == 1 ? std::max<std::int64_t>(split - context_len, 1) : 0;
    RowsOnPath some{.request = request, .begin = split, .end = seq_len};
    some.row_count = std::min(query_len, seq_len - split);
    some.first_position = std::max(context_len, split);
    some.causal = problem.attention.space == SelectionSpace::request_position;
    some.keys = seq_len;
    problem.rows.push_back(some);
    problem.query_len.push_back(query_len);
    problem.seq_len.push_back(seq_len);
    problem.extents.rows += query_len;
    problem.extents.request_rows = std::max(problem.extents.request_rows, query_len);
    problem.extents.keys = std::max(problem.extents.keys, seq_len);
    problem.extents.total_keys += seq_len;
  }

  /// From the least that there can be to more than enough.
  Blocking random_blocking(const Problem& problem) {
    const Blocking least = choose_mqa_blocking(problem.attention, problem.extents, 0);
    const Blocking most = choose_mqa_blocking(problem.attention, problem.extents, kMuch);
    const std::int64_t bytes = problem.bytes(least);
    const std::int64_t budget = bytes + random_.below(std::max<std::int64_t>(problem.bytes(most) - bytes, 0) + 1);
    const Blocking chosen =
        choose_mqa_blocking(problem.attention, problem.extents, between(0, 3) == 0 ? kMuch : budget);
    EXPECT_LE(problem.bytes(chosen), std::max(budget, problem.bytes(most)));
    return chosen;
  }

  std::uint64_t seed_ = test::fresh_seed();
  test::Random random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
};

/// Rows of a tile at exact lengths, as union_list.h defines them.
struct TileRows {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

TileRows rows_of(const mqa::PathRows& path, std::int64_t tile, std::int64_t group, std::int64_t context_len,
                 std::int64_t seq_len) {
  const std::int64_t begin = std::max<std::int64_t>(path.begin, context_len);
  const std::int64_t end = std::min<std::int64_t>(path.end, seq_len);
  if (begin >= end) {
    return {};
  }
  const std::int64_t number = mqa::tile_of(begin, group) + tile;
  return {std::max(begin, mqa::tile_begin(number, group)), std::min(end, mqa::tile_end(number, group))};
}

TEST_F(MqaPassesTest, EveryRowIsInOneTileWhateverTheLengths) {
  for (int i = 0; i < 300; ++i) {
    const Problem problem = random_problem();
    const MqaPasses passes = problem.plan(random_blocking(problem));
    for (std::size_t r = 0; r < problem.rows.size(); ++r) {
      const RowsOnPath& some = problem.rows[r];
      for (int lengths = 0; lengths < 4; ++lengths) {
        const std::int64_t seq_len = lengths == 0
                                         ? problem.seq_len[r]
                                         : between(std::min<std::int64_t>(1, problem.seq_len[r]), problem.seq_len[r]);
        const std::int64_t query_len =
            lengths == 0 ? problem.query_len[r] : between(0, std::min(problem.query_len[r], seq_len));
        const std::int64_t context_len = seq_len - query_len;
        std::vector<int> covered(static_cast<std::size_t>(seq_len));
        for (const mqa::TileReference& tile : passes.tiles) {
          if (tile.request != some.request) {
            continue;
          }
          const TileRows rows = rows_of(passes.rows[static_cast<std::size_t>(some.request)], tile.tile, problem.group,
                                        context_len, seq_len);
          ASSERT_LE(rows.end - rows.begin, problem.group);
          for (std::int64_t position = rows.begin; position < rows.end; ++position) {
            ++covered[static_cast<std::size_t>(position)];
          }
        }
        for (std::int64_t position = 0; position < seq_len; ++position) {
          const bool on_path = position >= std::max(some.begin, context_len) && position < some.end;
          ASSERT_EQ(covered[static_cast<std::size_t>(position)], on_path ? 1 : 0) << "position " << position;
        }
      }
    }
  }
}

TEST_F(MqaPassesTest, ListsHoldWhatATileCanAttendTo) {
  for (int i = 0; i < 300; ++i) {
    const Problem problem = random_problem();
    const MqaPasses passes = problem.plan(random_blocking(problem));
    const std::optional<std::int64_t> row_keys = most_row_keys(problem.attention.rule);
    for (const MqaSlice& slice : passes.slices) {
      const std::int64_t capacity = list_capacity(problem.attention.rule, problem.group, slice.keys);
      ASSERT_EQ(capacity % mqa::kKeyBlock, 0);
      for (std::int64_t t = slice.first_tile; t < slice.first_tile + slice.num_tiles; ++t) {
        const std::int64_t request = passes.tiles[static_cast<std::size_t>(t)].request;
        const auto some = std::find_if(problem.rows.begin(), problem.rows.end(),
                                       [&](const RowsOnPath& rows) { return rows.request == request; });
        ASSERT_NE(some, problem.rows.end());
        const std::int64_t position = between(0, some->end - 1);
        // Covered rows attend to all their keys, others to as many as the rule says.
        const std::int64_t keys = problem.attention.rule.covers(position) ? position + 1
                                  : row_keys                              ? std::min(*row_keys, some->keys)
                                                                          : some->keys;
        ASSERT_GE(capacity, std::min(problem.group * keys, some->keys));
      }
    }
  }
}

TEST_F(MqaPassesTest, SlicesAndStagesStayWithinTheirCapacity) {
  int cut = 0;
  for (int i = 0; i < 600; ++i) {
    const Problem problem = random_problem();
    const Blocking blocking = random_blocking(problem);
    const MqaPasses passes = problem.plan(blocking);
    ASSERT_EQ(blocking.query_slice % problem.group, 0) << "slices hold whole tiles";
    std::int64_t next_tile = 0;
    std::int64_t next_slice = 0;
    std::int64_t next_run = 0;
    for (const MqaStage& stage : passes.stages) {
      ASSERT_EQ(stage.first_slice, next_slice);
      ASSERT_EQ(stage.first_run, next_run);
      ASSERT_GE(stage.num_slices, 1);
      std::vector<bool> converted(static_cast<std::size_t>(problem.requests));
      std::int64_t next_row = 0;
      for (std::int64_t r = stage.first_run; r < stage.first_run + stage.num_runs; ++r) {
        const cache::cuda::KeyRun& run = passes.runs[static_cast<std::size_t>(r)];
        ASSERT_EQ(run.row, next_row);
        ASSERT_EQ(run.first, 0);
        ASSERT_EQ(run.row, passes.first_rows[static_cast<std::size_t>(run.request)]);
        next_row += run.count;
        converted[static_cast<std::size_t>(run.request)] = true;
      }
      ASSERT_EQ(stage.keys, next_row);
      ASSERT_LE(stage.keys, blocking.context_block);
      for (std::int64_t s = next_slice; s < next_slice + stage.num_slices; ++s) {
        const MqaSlice& slice = passes.slices[static_cast<std::size_t>(s)];
        ASSERT_EQ(slice.first_tile, next_tile);
        ASSERT_GE(slice.num_tiles, 1);
        ASSERT_LE(slice.num_tiles * problem.group, blocking.query_slice);
        ASSERT_LE(slice.keys, problem.extents.keys);
        for (std::int64_t t = next_tile; t < next_tile + slice.num_tiles; ++t) {
          const std::int64_t request = passes.tiles[static_cast<std::size_t>(t)].request;
          ASSERT_EQ(converted[static_cast<std::size_t>(request)], problem.converts_request(request, blocking));
        }
        next_tile += slice.num_tiles;
      }
      next_slice += stage.num_slices;
      next_run += stage.num_runs;
    }
    ASSERT_EQ(next_tile, static_cast<std::int64_t>(passes.tiles.size()));
    ASSERT_EQ(next_slice, static_cast<std::int64_t>(passes.slices.size()));
    ASSERT_EQ(next_run, static_cast<std::int64_t>(passes.runs.size()));
    cut += next_slice > 1 ? 1 : 0;
    if (rows_are_tokens(problem.attention, problem.extents, blocking)) {
      ASSERT_EQ(problem.extents.other_rows, 0);
    }
  }
  EXPECT_GT(cut, 60);
}

TEST_F(MqaPassesTest, BlockingStaysWithinTheBudgetAndUsesIt) {
  for (int i = 0; i < 300; ++i) {
    Problem problem = random_problem();
    if (problem.rows.empty()) {
      continue;
    }
    const Blocking least = choose_mqa_blocking(problem.attention, problem.extents, 0);
    const Blocking most = choose_mqa_blocking(problem.attention, problem.extents, kMuch);
    EXPECT_EQ(least.query_slice, problem.group);
    const std::int64_t least_bytes = problem.bytes(least);
    const std::int64_t most_bytes = problem.bytes(most);
    EXPECT_LE(problem.plan(most).slices.size(), 2U) << "of converted keys and of others";
    EXPECT_TRUE(has_all_lists(problem.attention, problem.extents, most));
    EXPECT_LE(std::ssize(problem.plan(most).tiles) * problem.group, most.query_slice) << "a list for every tile";
    EXPECT_EQ(rows_are_tokens(problem.attention, problem.extents, most), problem.extents.other_rows == 0);
    for (int b = 0; b < 5 && most_bytes > least_bytes; ++b) {
      const std::int64_t budget = between(least_bytes, most_bytes - 1);
      EXPECT_LE(problem.bytes(choose_mqa_blocking(problem.attention, problem.extents, budget)), budget);
    }
    EXPECT_EQ(problem.bytes(choose_mqa_blocking(problem.attention, problem.extents, most_bytes)), most_bytes);

    // A batch of which some rows take other paths, or that is smaller, needs no more.
    Extents mixed = problem.extents;
    mixed.other_rows = 1;
    PathArenas arenas;
    const MqaMemory memory(arenas, problem.attention, mixed, choose_mqa_blocking(problem.attention, mixed, kMuch));
    EXPECT_LE(most_bytes, arenas.scratch.used());
  }
}

TEST(MqaBlocking, TilesOfALongPromptAreWhatTheirPositionsSay) {
  Attention attention;
  attention.geometry = {16, 512, 256, 0, 256};
  attention.rule = SelectionRule::lightning(2048);
  const Extents extents{.rows = 16384, .request_rows = 16384, .keys = 16384, .total_keys = 16384, .requests = 1};
  const Blocking blocking = choose_mqa_blocking(attention, extents, std::numeric_limits<std::int64_t>::max());
  // 256 blocks of 16 tiles, and one more block where the request does not start at a multiple of 64.
  EXPECT_EQ(blocking.query_slice, 4 * 257 * 16);
  EXPECT_EQ(blocking.context_block, 0);
  EXPECT_EQ(list_capacity(attention.rule, 4, 16384), 4 * 2048);
  EXPECT_EQ(list_capacity(attention.rule, 4, 1000), 1024);
  EXPECT_EQ(list_capacity(SelectionRule::opaque(), 4, 16384), 16384);
  EXPECT_EQ(list_capacity(SelectionRule::kpool(2048, 4, true), 4, 131072), 4 * 2176);
}

TEST(MqaWork, CountsWhatTilesWaste) {
  Attention attention;
  attention.geometry = {16, 512, 256, 0, 256};
  attention.rule = SelectionRule::none();
  const auto flops = [&](std::int64_t heads, std::int64_t begin, std::int64_t end) {
    attention.geometry.num_heads = heads;
    return count_mqa_work(attention, begin, end, 64).mqa_flops;
  };
  // A single row takes a tile whatever its heads are, and two tiles from 65 heads on.
  EXPECT_DOUBLE_EQ(flops(1, 999, 1000), 2.0 * 64 * 1024 * (1000 + 32));
  EXPECT_DOUBLE_EQ(flops(64, 999, 1000), flops(1, 999, 1000));
  EXPECT_DOUBLE_EQ(flops(65, 999, 1000), 2 * flops(1, 999, 1000));
  // Four neighbours share one where their heads fit.
  EXPECT_NEAR(flops(16, 996, 1000) / flops(64, 996, 1000), 0.25, 1e-9);
  EXPECT_DOUBLE_EQ(flops(33, 996, 1000), flops(64, 996, 1000));
}

}  // namespace
}  // namespace headrace::attention
