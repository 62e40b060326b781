// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "headrace/error.h"
#include "headrace/indexer.h"
#include "selection/score_rows.h"
#include "support/errors.h"
#include "support/index_cache_kit.h"

namespace headrace {
namespace {

using test::IndexCacheKit;
using Rows = std::vector<std::vector<std::int32_t>>;

constexpr std::int64_t kPlenty = std::int64_t{1} << 40;
constexpr std::int32_t kPoison = -12345;

IndexerGeometry geometry(std::int64_t heads, std::int64_t dim, std::int64_t topk) {
  IndexerGeometry indexer;
  indexer.num_heads = heads;
  indexer.head_dim = dim;
  indexer.topk = topk;
  return indexer;
}

IndexerGeometry pooled(IndexerGeometry indexer, std::int64_t pool, bool tail) {
  indexer.kpool = true;
  indexer.pool = pool;
  indexer.topk = (indexer.topk + pool - 1) / pool * pool;
  indexer.tail = tail;
  return indexer;
}

/// Runs `select` and returns its rows, having checked that only the selection's own columns were written.
template <class T>
Rows run_select(IndexCacheKit<T>& kit, const typename IndexCacheKit<T>::Step& step,
                std::int64_t workspace_bytes = kPlenty, int threads = 1,
                const std::vector<std::int64_t>& scoring_begin = {}) {
  const std::int64_t width = kit.indexer.rule().width();
  const std::int64_t stride = width + 2;
  std::vector<std::int32_t> index(static_cast<std::size_t>(step.tokens * stride), kPoison);
  std::vector<std::int32_t> count(static_cast<std::size_t>(step.tokens), kPoison);
  const View<const std::int64_t> begin =
      scoring_begin.empty()
          ? View<const std::int64_t>()
          : View<const std::int64_t>(scoring_begin.data(), {static_cast<std::int64_t>(scoring_begin.size())});
  select(kit.indexer, kit.compute(), kit.cache(), kit.queries(step), step.requests, begin,
         View<std::int32_t>(index.data(), 2, {step.tokens, width}, {stride, 1}),
         View<std::int32_t>(count.data(), {step.tokens}), workspace_bytes, threads);
  Rows rows;
  for (std::int64_t t = 0; t < step.tokens; ++t) {
    const std::int32_t n = count[static_cast<std::size_t>(t)];
    EXPECT_GE(n, 0);
    EXPECT_LE(n, width);
    const auto row = index.begin() + t * stride;
    EXPECT_TRUE(std::all_of(row + n, row + width, [](std::int32_t i) { return i == -1; })) << "token " << t;
    EXPECT_TRUE(std::all_of(row + width, row + stride, [](std::int32_t i) { return i == kPoison; })) << "token " << t;
    rows.emplace_back(row, row + n);
  }
  return rows;
}

/// Scores of everything a row sees, in double from the inputs: keys, or complete pools.
template <class T>
std::vector<double> reference_scores(const IndexCacheKit<T>& kit, std::size_t request, std::int64_t position) {
  const IndexerGeometry& g = kit.indexer;
  const std::int64_t pool = g.kpool ? g.pool : 1;
  std::vector<double> scores;
  for (std::int64_t c = 0; (c + 1) * pool - 1 <= position; ++c) {
    const std::vector<double> key = kit.candidate_key(request, c);
    double score = 0;
    for (std::int64_t h = 0; h < g.num_heads; ++h) {
      double product = 0;
      for (std::int64_t d = 0; d < g.head_dim; ++d) {
        const auto at = static_cast<std::size_t>((position * g.num_heads + h) * g.head_dim + d);
        product += static_cast<double>(static_cast<float>(kit.query[request][at])) * key[static_cast<std::size_t>(d)];
      }
      score += static_cast<double>(kit.weight[request][static_cast<std::size_t>(position * g.num_heads + h)]) *
               std::max(0.0, product);
    }
    scores.push_back(score);
  }
  return scores;
}

/// The selection of a row by definition: sort all candidates, take the best, spread pools, add the tail.
std::vector<std::int32_t> reference_row(const IndexerGeometry& g, const std::vector<double>& scores,
                                        std::int64_t position) {
  const std::int64_t pool = g.kpool ? g.pool : 1;
  std::vector<std::int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<std::size_t>(g.topk / pool)));
  std::vector<std::int32_t> row;
  for (const std::int64_t c : order) {
    for (std::int64_t o = 0; o < pool; ++o) {
      row.push_back(static_cast<std::int32_t>(c * pool + o));
    }
  }
  for (std::int64_t p = position + 1 - (position + 1) % pool; g.kpool && g.tail && p <= position; ++p) {
    row.push_back(static_cast<std::int32_t>(p));
  }
  std::sort(row.begin(), row.end());
  return row;
}

template <class T>
class Select : public testing::Test {
 protected:
  using Kit = IndexCacheKit<T>;

  /// Small whole numbers and equal gates: every score is exact in float32, and many are equal. For pools of 2^n.
  Kit exact_kit(const IndexerGeometry& indexer, std::vector<std::int64_t> seq_lens, std::int64_t page_size) {
    return Kit(
        indexer, std::move(seq_lens), {page_size, 3, 5}, random_,
        [this] { return static_cast<float>(random_.below(5) - 2); }, [] { return 0.0F; });
  }
  Kit normal_kit(const IndexerGeometry& indexer, std::vector<std::int64_t> seq_lens, std::int64_t page_size) {
    return Kit(
        indexer, std::move(seq_lens), {page_size, 1, 2}, random_, [this] { return random_.normal(); },
        [this] { return random_.normal(); });
  }
  static void expect_reference(const Kit& kit, const typename Kit::Step& step, const Rows& rows) {
    for (std::size_t b = 0; b < kit.seq_len.size(); ++b) {
      for (std::int32_t t = step.query_start[b]; t < step.query_start[b + 1]; ++t) {
        const std::int64_t position = step.seq_len[b] - (step.query_start[b + 1] - t);
        EXPECT_EQ(rows[static_cast<std::size_t>(t)],
                  reference_row(kit.indexer, reference_scores(kit, b, position), position))
            << "request " << b << " position " << position;
      }
    }
  }

  std::uint64_t seed_ = test::fresh_seed();
  test::Random random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
};

using ComputeTypes = testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(Select, ComputeTypes);

TYPED_TEST(Select, LightningTakesTheBestKeys) {
  for (const std::int64_t page_size : {1, 3, 5, 64}) {
    auto kit = this->exact_kit(geometry(3, 8, 12), {90, 0, 1, 12, 13}, page_size);
    const auto step = kit.next(kit.seq_len);
    kit.append(step);
    this->expect_reference(kit, step, run_select(kit, step));
  }
}

TYPED_TEST(Select, KpoolTakesTheBestPoolsAndTheTail) {
  for (const std::int64_t pool : {1, 4, 16}) {
    for (const bool tail : {false, true}) {
      for (const std::int64_t page_size : {1, 3, 5, 64}) {
        SCOPED_TRACE(testing::Message() << "pool " << pool << " tail " << tail << " page size " << page_size);
        auto kit = this->exact_kit(pooled(geometry(2, 8, 34), pool, tail), {140, 3, 0, 35}, page_size);
        const auto step = kit.next(kit.seq_len);
        kit.append(step);
        this->expect_reference(kit, step, run_select(kit, step));
      }
    }
  }
}

TYPED_TEST(Select, RandomShapesInRandomChunks) {
  for (int round = 0; round < 80; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const std::int64_t pool = std::int64_t{1} << this->random_.below(5);
    IndexerGeometry indexer =
        geometry(1 + this->random_.below(20), 1 + this->random_.below(40), pool + this->random_.below(60));
    if (this->random_.chance(0.6)) {
      indexer = pooled(indexer, pool, this->random_.chance(0.5));
    }
    auto kit = this->exact_kit(indexer, {this->random_.below(200), this->random_.below(30), this->random_.below(90)},
                               1 + this->random_.below(20));
    while (!kit.finished()) {
      const auto step = kit.next(kit.some(this->random_, 1 + this->random_.below(100)));
      kit.append(step);
      const std::int64_t least = select_workspace_minimum(indexer, *std::max_element(kit.done.begin(), kit.done.end()));
      const std::int64_t workspace = this->random_.chance(0.5) ? kPlenty : least * (1 + this->random_.below(20));
      this->expect_reference(kit, step, run_select(kit, step, workspace, 1 + static_cast<int>(this->random_.below(4))));
    }
  }
}

// With scores that round, the choice itself may differ from the reference's in near ties, but never its worth.
TYPED_TEST(Select, RoundedScoresChooseAsWell) {
  for (const std::int64_t pool : {1, 4, 5, 16}) {
    auto kit = this->normal_kit(pooled(geometry(4, 32, 64), pool, true), {300, 101}, 7);
    const auto step = kit.next(kit.seq_len);
    kit.append(step);
    const Rows rows = run_select(kit, step);
    const double tolerance = sizeof(TypeParam) == 2 && pool > 1 ? 2e-2 : 1e-5;  // pooled keys are rounded
    for (std::size_t b = 0; b < 2; ++b) {
      for (std::int64_t p = 0; p < kit.seq_len[b]; ++p) {
        const std::vector<std::int32_t>& row = rows[static_cast<std::size_t>(step.query_start[b] + p)];
        const std::vector<double> scores = reference_scores(kit, b, p);
        const std::vector<std::int32_t> best = reference_row(kit.indexer, scores, p);
        ASSERT_EQ(row.size(), best.size());
        double kth = std::numeric_limits<double>::infinity();
        double largest = 0;
        for (const std::int32_t key : best) {
          if (key / pool < std::ssize(scores)) {
            kth = std::min(kth, scores[static_cast<std::size_t>(key / pool)]);
          }
        }
        for (const double s : scores) {
          largest = std::max(largest, std::abs(s));
        }
        for (const std::int32_t key : row) {
          if (key / pool < std::ssize(scores)) {
            EXPECT_GE(scores[static_cast<std::size_t>(key / pool)], kth - tolerance * largest) << "position " << p;
          }
        }
      }
    }
  }
}

TYPED_TEST(Select, ChunksThreadsAndWorkspaceChangeNoBit) {
  for (const bool kpool : {false, true}) {
    const IndexerGeometry indexer = kpool ? pooled(geometry(5, 48, 40), 4, true) : geometry(5, 48, 40);
    auto kit = this->normal_kit(indexer, {700, 350}, 16);
    auto chunked = kit;
    const auto step = kit.next(kit.seq_len);
    kit.append(step);
    const Rows whole = run_select(kit, step);
    const std::int64_t least = select_workspace_minimum(indexer, 700);
    for (const std::int64_t workspace : {least, 3 * least, 40 * least}) {
      EXPECT_EQ(run_select(kit, step, workspace, 3), whole);
    }
    EXPECT_EQ(run_select(kit, step, kPlenty, 4), whole);
    while (!chunked.finished()) {
      const std::vector<std::int64_t> before = chunked.done;
      const auto part = chunked.next(chunked.some(this->random_, 200));
      chunked.append(part);
      const Rows rows = run_select(chunked, part);
      for (std::size_t b = 0; b < 2; ++b) {
        for (std::int64_t p = before[b]; p < chunked.done[b]; ++p) {
          EXPECT_EQ(rows[static_cast<std::size_t>(part.query_start[b] + p - before[b])],
                    whole[static_cast<std::size_t>(step.query_start[b] + p)]);
        }
      }
    }
  }
}

TYPED_TEST(Select, ScoreRowGivesTheScores) {
  for (const std::int64_t pool : {0, 4}) {
    const IndexerGeometry indexer = pool == 0 ? geometry(3, 24, 8) : pooled(geometry(3, 24, 8), pool, true);
    auto kit = this->exact_kit(indexer, {600, 50}, 5);
    const auto step = kit.next(kit.seq_len);
    kit.append(step);
    std::vector<float> scores(600);
    for (const std::int64_t p : {0, 2, 3, 49, 300, 599}) {
      const std::size_t b = p < 50 ? 1 : 0;
      const std::vector<double> expected = reference_scores(kit, b, p);
      const std::int64_t n =
          score_row(indexer, kit.compute(), kit.cache(), kit.queries(step), step.requests, static_cast<std::int64_t>(b),
                    step.query_start[b] + p, View<float>(scores.data(), {600}));
      ASSERT_EQ(n, std::ssize(expected));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(static_cast<double>(scores[i]), expected[i]);
      }
    }
    const auto score = [&](std::int64_t request, std::int64_t token, std::int64_t room) {
      score_row(indexer, kit.compute(), kit.cache(), kit.queries(step), step.requests, request, token,
                View<float>(scores.data(), {room}));
    };
    EXPECT_THROW(score(0, 600, 600), Error);
    EXPECT_THROW(score(1, 599, 600), Error);
    EXPECT_THROW(score(2, 0, 600), Error);
    EXPECT_THROW(score(-1, 0, 600), Error);
    EXPECT_THROW(score(0, 599, 149), Error);
  }
}

TYPED_TEST(Select, EqualScoresTakeTheLowestPositions) {
  auto kit = IndexCacheKit<TypeParam>(
      pooled(geometry(2, 8, 8), 2, true), {31}, {4, 0, 0}, this->random_, [] { return 0.0F; }, [] { return 0.0F; });
  const auto step = kit.next({31});
  kit.append(step);
  const Rows rows = run_select(kit, step);
  EXPECT_EQ(rows[29], (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(rows[30], (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 30}));
}

TYPED_TEST(Select, ABudgetAboveTheSequenceTakesEveryKey) {
  auto kit = this->normal_kit(geometry(2, 8, 1000), {40}, 4);
  const auto step = kit.next({40});
  kit.append(step);
  const Rows rows = run_select(kit, step);
  for (std::int64_t p = 0; p < 40; ++p) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(p + 1));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(rows[static_cast<std::size_t>(p)], all);
  }
}

TYPED_TEST(Select, RowsBelowScoringBeginAreEmpty) {
  auto kit = this->exact_kit(geometry(2, 8, 6), {60, 30, 10}, 4);
  kit.append(kit.next({20, 0, 0}));
  const auto step = kit.next({40, 30, 10});
  kit.append(step);
  const Rows all = run_select(kit, step);
  const std::vector<std::int64_t> begin{33, 0, 11};
  const Rows rows = run_select(kit, step, kPlenty, 2, begin);
  for (std::size_t t = 0; t < rows.size(); ++t) {
    const bool scored = t < 40 ? t + 20 >= 33 : t < 70;
    EXPECT_EQ(rows[t], scored ? all[t] : std::vector<std::int32_t>()) << "token " << t;
  }
  // Nothing is scored, so nothing is read and no workspace is needed.
  std::fill(kit.table.begin(), kit.table.end(), -1);
  const std::vector<std::int64_t> never(3, std::numeric_limits<std::int64_t>::max());
  for (const std::vector<std::int32_t>& row : run_select(kit, step, 0, 1, never)) {
    EXPECT_TRUE(row.empty());
  }
}

// As ranks share the rows: each part is what the whole call makes of it, and the rest is not written.
TYPED_TEST(Select, RangesOfRowsAreThoseOfTheWhole) {
  auto kit = this->exact_kit(geometry(2, 8, 6), {60, 30, 10}, 4);
  kit.append(kit.next({20, 0, 0}));
  const auto step = kit.next({40, 30, 10});
  kit.append(step);
  constexpr std::int32_t kPoison = -77;
  constexpr std::int64_t kColumns = 9;  // more than the rule needs
  const std::vector<std::int64_t> begin{33, 0, 4};
  const auto run = [&](TokenRange rows, std::vector<std::int32_t>& index, std::vector<std::int32_t>& count) {
    select(kit.indexer, kit.compute(), kit.cache(), kit.queries(step), step.requests,
           View<const std::int64_t>(begin.data(), {3}), View<std::int32_t>(index.data(), {step.tokens, kColumns}),
           View<std::int32_t>(count.data(), {step.tokens}), kPlenty, 2, rows);
  };
  const auto size = static_cast<std::size_t>(step.tokens);
  std::vector<std::int32_t> whole_index(size * kColumns, kPoison);
  std::vector<std::int32_t> whole_count(size, kPoison);
  run({}, whole_index, whole_count);
  const Rows narrow = run_select(kit, step, kPlenty, 2, begin);
  for (std::size_t t = 0; t < size; ++t) {
    ASSERT_EQ(whole_count[t], std::ssize(narrow[t])) << "token " << t;
    std::vector<std::int32_t> row = narrow[t];
    row.resize(kColumns, -1);
    ASSERT_TRUE(std::equal(row.begin(), row.end(), whole_index.begin() + static_cast<std::ptrdiff_t>(t * kColumns)));
  }
  for (int round = 0; round < 20; ++round) {
    const std::int64_t first = this->random_.below(step.tokens + 1);
    const std::int64_t last = first + this->random_.below(step.tokens + 5);
    std::vector<std::int32_t> index(size * kColumns, kPoison);
    std::vector<std::int32_t> count(size, kPoison);
    run({first, last}, index, count);
    for (std::int64_t t = 0; t < step.tokens; ++t) {
      const bool made = t >= first && t < last;
      EXPECT_EQ(count[static_cast<std::size_t>(t)], made ? whole_count[static_cast<std::size_t>(t)] : kPoison);
      for (std::int64_t c = t * kColumns; c < (t + 1) * kColumns; ++c) {
        EXPECT_EQ(index[static_cast<std::size_t>(c)], made ? whole_index[static_cast<std::size_t>(c)] : kPoison);
      }
    }
  }
  std::vector<std::int32_t> index(size * kColumns);
  std::vector<std::int32_t> count(size);
  EXPECT_TRUE(test::throws_error([&] { run({-1, 3}, index, count); }, "rows"));
  EXPECT_TRUE(test::throws_error([&] { run({5, 4}, index, count); }, "0 <= begin <= end"));
}

TYPED_TEST(Select, RowsOfScoresAreThoseOneByOne) {
  auto kit = this->exact_kit(geometry(2, 8, 6), {60, 30, 10}, 4);
  kit.append(kit.next({20, 0, 0}));
  auto step = kit.next({40, 30, 10});
  kit.append(step);
  constexpr float kPoison = -77.0F;
  constexpr std::int64_t kColumns = 61;
  const auto size = static_cast<std::size_t>(step.tokens * kColumns);
  std::vector<float> scores(size, kPoison);
  const auto run = [&](const Requests& requests, std::int64_t columns, TokenRange rows) {
    selection::score_rows(kit.indexer, kit.compute(), kit.cache(), kit.queries(step), requests,
                          View<float>(scores.data(), {step.tokens, columns}), rows);
  };
  run(step.requests, kColumns, {5, 72});
  for (std::size_t b = 0; b < 3; ++b) {
    for (std::int64_t t = step.query_start[b]; t < step.query_start[b + 1]; ++t) {
      std::vector<float> expected(kColumns, kPoison);
      if (t >= 5 && t < 72) {
        score_row(kit.indexer, kit.compute(), kit.cache(), kit.queries(step), step.requests,
                  static_cast<std::int64_t>(b), t, View<float>(expected.data(), {kColumns}));
      }
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), scores.begin() + t * kColumns)) << "token " << t;
    }
  }
  // Everything is refused before anything is written, whichever request is at fault.
  std::fill(scores.begin(), scores.end(), kPoison);
  EXPECT_TRUE(test::throws_error([&] { run(step.requests, 59, {}); }, "at least 60 columns"));
  Requests bad = step.requests;
  bad.seq_len = View<const std::int32_t>(step.seq_len.data(), 2, {3, 0}, {1, 1});
  EXPECT_TRUE(test::throws_error([&] { run(bad, kColumns, {}); }, "seq_len"));
  kit.table[static_cast<std::size_t>(2 * step.requests.block_table.stride(0))] = -1;
  EXPECT_TRUE(test::throws_error([&] { run(step.requests, kColumns, {}); }, "block_table"));
  EXPECT_TRUE(std::all_of(scores.begin(), scores.end(), [](float x) { return x == kPoison; }));
}

TYPED_TEST(Select, NonFiniteKeysSpoilOnlyTheirRequest) {
  auto kit = this->exact_kit(pooled(geometry(2, 8, 8), 4, true), {50, 50}, 3);
  const auto step = kit.next(kit.seq_len);
  kit.append(step);
  const Rows before = run_select(kit, step);
  for (std::int64_t p = 0; p < 50; ++p) {
    for (std::int64_t d = 0; d < 8; ++d) {
      kit.row(0, p)[d] = static_cast<TypeParam>(std::numeric_limits<float>::quiet_NaN());
    }
  }
  const Rows after = run_select(kit, step);
  EXPECT_TRUE(std::equal(before.begin() + 50, before.end(), after.begin() + 50));
}

TYPED_TEST(Select, NoTokens) {
  auto kit = this->exact_kit(geometry(2, 8, 6), {5, 0}, 4);
  const auto step = kit.next({0, 0});
  EXPECT_TRUE(run_select(kit, step, 0).empty());
}

TYPED_TEST(Select, RefusesBadInput) {
  auto kit = this->exact_kit(geometry(2, 8, 6), {20}, 4);
  const auto good = kit.next({20});
  kit.append(good);
  const auto refuses = [&](const auto& spoil) {
    auto step = good;
    step.requests.query_start = View<const std::int32_t>(step.query_start.data(), {2});
    step.requests.seq_len = View<const std::int32_t>(step.seq_len.data(), {1});
    const auto table = kit.table;
    spoil(step);
    EXPECT_THROW(run_select(kit, step), Error);
    kit.table = table;
  };
  refuses([&](auto&) { kit.table[4] = -1; });
  refuses([&](auto&) { kit.table[4] = 100; });
  refuses([&](auto& step) { step.requests.block_table = View<const std::int32_t>(kit.table.data(), {1, 4}); });
  refuses([&](auto& step) { step.query_start[1] = 19; });
  refuses([&](auto& step) { step.query_start[0] = -1; });
  refuses([&](auto& step) { step.seq_len[0] = 19; });
  refuses([&](auto& step) { step.seq_len[0] = std::numeric_limits<std::int32_t>::max(); });
  EXPECT_THROW(run_select(kit, good, kPlenty, 1, {-1}), Error);
  EXPECT_THROW(run_select(kit, good, kPlenty, 1, {0, 0}), Error);
  const std::int64_t least = select_workspace_minimum(kit.indexer, 20);
  EXPECT_THROW(run_select(kit, good, least - 1), Error);
  EXPECT_THROW(run_select(kit, good, -1), Error);
  EXPECT_NO_THROW(run_select(kit, good, least));
  kit.indexer.num_heads = 3;
  EXPECT_NO_THROW(kit.indexer.validate());
  EXPECT_THROW(select(kit.indexer, kit.compute(), kit.cache(),
                      {View<const TypeParam>(good.query.data(), {20, 2, 8}), {}}, good.requests, {}, {}, {}, kPlenty),
               Error);
}

}  // namespace
}  // namespace headrace
