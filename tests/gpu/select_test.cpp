// SPDX-License-Identifier: Apache-2.0
// The indexer's selection on the GPU: against the processor's where scores are exact, else against its own scores, and
// these against the formula in double.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "select_kit.h"

namespace headrace {
namespace {

using namespace test::select_kit;

class GpuSelect : public SelectTest {};

TEST_F(GpuSelect, TakesTheBestKeysAsTheProcessorDoes) {
  for (const std::int64_t page_size : {1, 3, 64}) {
    for (const std::int64_t dim : {16, 128, 144}) {
      SCOPED_TRACE(testing::Message() << "page size " << page_size << ", dim " << dim);
      Kit kit = exact_kit(geometry(3, dim, 12), {150, 0, 1, 12, 13}, {page_size, 0, 0});
      const Kit::Step step = kit.next(kit.seq_len);
      kit.append(step);
      ASSERT_EQ(StepOnDevice(kit, step).select(), cpu_rows(kit, step));
    }
  }
}

TEST_F(GpuSelect, TakesTheBestPoolsAndTheTailAsTheProcessorDoes) {
  for (const std::int64_t pool : {1, 4, 16}) {
    for (const bool tail : {false, true}) {
      for (const std::int64_t page_size : {1, 3, 64}) {
        SCOPED_TRACE(testing::Message() << "pool " << pool << ", tail " << tail << ", page size " << page_size);
        Kit kit = exact_kit(pooled(geometry(2, 16, 34), pool, tail), {140, 3, 0, 35}, {page_size, 3, 5});
        const Kit::Step step = kit.next(kit.seq_len);
        kit.append(step);
        ASSERT_EQ(StepOnDevice(kit, step).select(), cpu_rows(kit, step));
      }
    }
  }
}

TEST_F(GpuSelect, ServesAnyNumberOfHeadsAndDimsOfSixteens) {
  for (const std::int64_t heads : {1, 7, 8, 9, 16, 17, 32, 33, 64, 70}) {
    for (const std::int64_t dim : {16, 48, 128, 304}) {
      SCOPED_TRACE(testing::Message() << heads << " heads of " << dim);
      Kit kit = exact_kit(geometry(heads, dim, 5), {23}, {4, 0, 0});
      const Kit::Step step = kit.next(kit.seq_len);
      kit.append(step);
      ASSERT_EQ(StepOnDevice(kit, step).select(), cpu_rows(kit, step));
    }
  }
}

TEST_F(GpuSelect, RandomShapesInRandomChunks) {
  for (int round = 0; round < 25; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const std::int64_t pool = std::int64_t{1} << random_.below(5);
    IndexerGeometry indexer = geometry(1 + random_.below(20), 16 * (1 + random_.below(3)), pool + random_.below(60));
    if (random_.chance(0.6)) {
      indexer = pooled(indexer, pool, random_.chance(0.5));
    }
    Kit kit = exact_kit(indexer, {random_.below(300), random_.below(30), random_.below(90)}, random_layout());
    while (!kit.finished()) {
      const Kit::Step step = kit.next(kit.some(random_, 1 + random_.below(100)));
      kit.append(step);
      const std::int64_t bound_above = random_.chance(0.5) ? 0 : random_.below(200);
      const std::int64_t longest = *std::max_element(kit.done.begin(), kit.done.end()) + bound_above;
      const std::int64_t least = cuda_select_workspace(indexer, 1, longest).least;
      const std::int64_t workspace = random_.chance(0.5) ? kPlenty : least * (1 + random_.below(40));
      const std::int64_t query_gap = random_.chance(0.5) ? 0 : random_.below(20);
      Options options{workspace, {}, bound_above};
      if (random_.chance(0.5)) {
        options.calls = parts_of(step.tokens);
        options.columns_above = random_.below(9);
      }
      ASSERT_EQ(StepOnDevice(kit, step, query_gap).select(options), cpu_rows(kit, step));
    }
  }
}

// Scores that round: each within the error of float32 sums, the selection the best by these scores exactly, and the
// processor's but for keys whose scores are equal within that error.
TEST_F(GpuSelect, ScoresAreTheFormulasWithinRounding) {
  for (const std::int64_t pool : {0, 1, 4, 16}) {
    for (const std::int64_t heads : {4, 32}) {
      SCOPED_TRACE(testing::Message() << "pool " << pool << ", " << heads << " heads");
      const IndexerGeometry plain = geometry(heads, 128, 64);
      Kit kit = normal_kit(pool == 0 ? plain : pooled(plain, pool, true), {310, 101}, {7, 0, 0});
      kit.append(kit.next({250, 60}));
      const Kit::Step step = kit.next({60, 41});
      kit.append(step);
      const StepOnDevice device(kit, step);
      const Scores scores = device.scores(step);
      const Rows rows = device.select();
      const Rows cpu = cpu_rows(kit, step);
      expect_own_best(kit, step, scores, rows);
      // A sum of n float32 terms errs by n units of the terms' magnitude at most; tensor cores cut instead of rounding.
      const double unit = std::ldexp(static_cast<double>(kit.indexer.head_dim + heads), -23);
      std::int64_t entries = 0;
      std::int64_t shared = 0;
      for_rows(step, [&](std::size_t b, std::int64_t t, std::int64_t position) {
        std::vector<ExactScore> exact;
        double scale = 0;
        for (std::size_t c = 0; c < scores[at(t)].size(); ++c) {
          exact.push_back(exact_score(kit, b, position, static_cast<std::int64_t>(c)));
          scale = std::max(scale, std::abs(exact[c].value));
        }
        double error = 0;
        for (std::size_t c = 0; c < exact.size(); ++c) {
          const double off = std::abs(static_cast<double>(scores[at(t)][c]) - exact[c].value);
          ASSERT_LE(off, unit * exact[c].magnitude) << "request " << b << ", position " << position << ", " << c;
          ASSERT_LE(off, 1e-3 * scale);
          error = std::max(error, unit * exact[c].magnitude);
        }
        ASSERT_EQ(rows[at(t)].size(), cpu[at(t)].size());
        std::vector<std::int32_t> both;
        std::set_intersection(rows[at(t)].begin(), rows[at(t)].end(), cpu[at(t)].begin(), cpu[at(t)].end(),
                              std::back_inserter(both));
        entries += std::ssize(cpu[at(t)]);
        shared += std::ssize(both);
        std::vector<std::int32_t> only;
        std::set_symmetric_difference(rows[at(t)].begin(), rows[at(t)].end(), cpu[at(t)].begin(), cpu[at(t)].end(),
                                      std::back_inserter(only));
        for (const std::int32_t key : only) {
          const double value = exact[at(key / std::max<std::int64_t>(pool, 1))].value;
          for (const std::int32_t other : only) {
            ASSERT_NEAR(value, exact[at(other / std::max<std::int64_t>(pool, 1))].value, 2 * error);
          }
        }
      });
      EXPECT_GE(static_cast<double>(shared), 0.999 * static_cast<double>(entries));
    }
  }
}

TEST_F(GpuSelect, EqualKeysTakeTheLowestPositions) {
  for (const std::int64_t pool : {0, 4}) {
    const IndexerGeometry plain = geometry(9, 64, 40);
    const IndexerGeometry indexer = pool == 0 ? plain : pooled(plain, pool, true);
    Kit kit = normal_kit(indexer, {600}, {3, 0, 0});
    const Kit::Step step = kit.next({600});
    kit.append(step);
    // Each key is one of seven, so that every row's k-th best ties with dozens, before and after it.
    const std::int64_t every = std::max<std::int64_t>(pool, 1);
    for (std::int64_t p = every - 1; p < 600; p += every) {
      std::copy_n(kit.row(0, random_.below(7) * every + every - 1), 64, kit.row(0, p));
    }
    const StepOnDevice device(kit, step);
    const Scores scores = device.scores(step);
    expect_own_best(kit, step, scores, device.select());
    for_rows(step, [&](std::size_t, std::int64_t t, std::int64_t) {  // equal keys have equal scores, wherever they lie
      std::vector<float> distinct = scores[at(t)];
      std::sort(distinct.begin(), distinct.end());
      ASSERT_LE(std::unique(distinct.begin(), distinct.end()) - distinct.begin(), 7);
    });
  }
}

TEST_F(GpuSelect, NanScoresRankLast) {
  for (const std::int64_t topk : {20, 280, 299}) {
    Kit kit = exact_kit(geometry(5, 16, topk), {300, 40}, {3, 0, 0});
    const Kit::Step step = kit.next(kit.seq_len);
    kit.append(step);
    std::int64_t nans = 0;
    for (std::int64_t p = 0; p < 300; ++p) {
      if (random_.chance(0.1)) {
        kit.row(0, p)[random_.below(16)] = bfloat16(std::numeric_limits<float>::quiet_NaN());
        ++nans;
      }
    }
    const StepOnDevice device(kit, step);
    const Rows rows = device.select();
    EXPECT_EQ(rows, cpu_rows(kit, step));
    const Scores scores = device.scores(step);
    const std::vector<float>& last = scores[299];
    EXPECT_EQ(std::count_if(last.begin(), last.end(), [](float x) { return std::isnan(x); }), nans);
    expect_own_best(kit, step, scores, rows);
  }
}

// Scores of every size and sign, made of the value of one channel and the weights of heads: subnormal, huge, infinite,
// and with the third token's weights -0 beside +0, which are equal.
TEST_F(GpuSelect, OrdersEveryKindOfNumber) {
  constexpr std::int64_t kKeys = 3000;
  constexpr std::size_t kHeads = 8;
  constexpr std::size_t kDim = 16;
  for (const std::int64_t topk : {1, 700, 2999}) {
    Kit kit = exact_kit(geometry(kHeads, kDim, topk), {kKeys}, {64, 0, 0});
    kit.append(kit.next({kKeys - 3}));
    Kit::Step step = kit.next({3});
    kit.append(step);
    for (std::int64_t p = 0; p < kKeys; ++p) {
      std::fill_n(kit.row(0, p), kDim, bfloat16(0.0F));
      bfloat16 value;
      value.bits = static_cast<std::uint16_t>(random_.below(0x7f80));  // finite, not negative
      kit.row(0, p)[random_.below(3)] = value;
    }
    std::fill(step.query.begin(), step.query.end(), bfloat16(0.0F));
    std::fill(step.weight.begin(), step.weight.end(), 0.0F);
    const auto set = [&](std::size_t token, std::size_t head, std::size_t channel, float weight) {
      step.query[(token * kHeads + head) * kDim + channel] = bfloat16(1.0F);
      step.weight[token * kHeads + head] = weight;
    };
    set(0, 0, 0, 1.0F);
    set(0, 1, 1, -1.0F);
    set(1, 0, 0, 3e38F);
    set(1, 1, 1, -1e-3F);
    for (std::size_t head = 0; head < kHeads; ++head) {
      set(2, head, 0, -1e-38F);
    }
    const StepOnDevice device(kit, step);
    const Scores scores = device.scores(step);
    EXPECT_TRUE(std::any_of(scores[1].begin(), scores[1].end(), [](float x) { return std::isinf(x); }));
    expect_own_best(kit, step, scores, device.select());
  }
}

// Rows of many chunks of the block that ranks them, with ties across chunks.
TEST_F(GpuSelect, LongRows) {
  for (const std::int64_t topk : {2048, 5}) {
    Kit kit = exact_kit(geometry(1, 16, topk), {20'011}, {64, 0, 0});
    kit.append(kit.next({20'008}));
    const Kit::Step step = kit.next({3});
    kit.append(step);
    EXPECT_EQ(StepOnDevice(kit, step).select(), cpu_rows(kit, step));
  }
}

TEST_F(GpuSelect, ChunksBatchesBoundsAndWorkspaceChangeNoBit) {
  for (const bool kpool : {false, true}) {
    const IndexerGeometry plain = geometry(5, 48, 40);
    const IndexerGeometry indexer = kpool ? pooled(plain, 4, true) : plain;
    Kit kit = normal_kit(indexer, {333, 150}, {16, 0, 0});
    Kit chunked = kit;
    const Kit::Step step = kit.next(kit.seq_len);
    kit.append(step);
    const StepOnDevice device(kit, step);
    const Rows whole = device.select();
    const Scores scores = device.scores(step);
    const std::int64_t least = cuda_select_workspace(indexer, 1, 333).least;
    for (const std::int64_t workspace : {least, 3 * least + 17, 40 * least}) {
      EXPECT_EQ(device.select({workspace, {}, 0}), whole);
    }
    EXPECT_EQ(device.select({kPlenty, {}, 5000}), whole);
    while (!chunked.finished()) {
      const std::vector<std::int64_t> before = chunked.done;
      const Kit::Step part = chunked.next(chunked.some(random_, 120));
      chunked.append(part);
      const StepOnDevice part_device(chunked, part);
      const Rows rows = part_device.select();
      const Scores part_scores = part_device.scores(part);
      for_rows(part, [&](std::size_t b, std::int64_t t, std::int64_t position) {
        const std::size_t in_whole = at(step.query_start[b] + position);
        ASSERT_EQ(rows[at(t)], whole[in_whole]);
        ASSERT_EQ(part_scores[at(t)], scores[in_whole]);
      });
    }
  }
}

}  // namespace
}  // namespace headrace
