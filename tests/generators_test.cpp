// SPDX-License-Identifier: Apache-2.0
#include "selection/generators.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "headrace/error.h"
#include "support/random.h"

namespace headrace::selection {
namespace {

using Rows = std::vector<std::vector<std::int32_t>>;

/// Fills a request, checks what holds for every generator, and returns its rows.
Rows rows_of(const Generator& generator, std::int64_t request, std::int64_t context, std::int64_t query_len) {
  const std::int64_t width = generator.width() + 2;
  std::vector<std::int32_t> index(static_cast<std::size_t>(query_len * width), -99);
  std::vector<std::int32_t> count(static_cast<std::size_t>(query_len), -99);
  generator.fill(request, context, View<std::int32_t>(index.data(), {query_len, width}),
                 View<std::int32_t>(count.data(), {query_len}));
  Rows rows;
  for (std::int64_t r = 0; r < query_len; ++r) {
    const std::int32_t n = count[static_cast<std::size_t>(r)];
    EXPECT_GE(n, 0);
    EXPECT_LE(n, generator.width());
    const auto begin = index.begin() + r * width;
    rows.emplace_back(begin, begin + n);
    EXPECT_TRUE(std::all_of(begin + n, begin + width, [](std::int32_t i) { return i == -1; })) << "row " << r;
    EXPECT_TRUE(std::is_sorted(rows.back().begin(), rows.back().end(), std::less_equal<>())) << "row " << r;
    if (n > 0) {
      EXPECT_GE(rows.back().front(), 0);
      EXPECT_LE(rows.back().back(), context + r);
    }
  }
  return rows;
}

Generator make(const std::string& text, std::int64_t topk, std::uint64_t seed) {
  Generator generator = parse_generator(text);
  generator.topk = topk;
  generator.seed = seed;
  return generator;
}

std::int64_t shared(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  std::vector<std::int32_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return static_cast<std::int64_t>(both.size());
}

/// Mean size of the union of the selections of `tile` neighbouring rows over so many keys.
double mean_union(const Rows& rows, std::size_t tile, std::int64_t keys) {
  double total = 0;
  for (std::size_t begin = 0; begin < rows.size(); begin += tile) {
    std::vector<bool> seen(static_cast<std::size_t>(keys));
    for (std::size_t r = begin; r < begin + tile; ++r) {
      for (const std::int32_t p : rows[r]) {
        total += seen[static_cast<std::size_t>(p)] ? 0 : 1;
        seen[static_cast<std::size_t>(p)] = true;
      }
    }
  }
  const std::size_t tiles = rows.size() / tile;
  return total / static_cast<double>(tiles);
}

class GeneratorTest : public testing::Test {
 protected:
  std::uint64_t seed_ = test::fresh_seed();
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
};

TEST_F(GeneratorTest, RowsTakeEverythingAndThenTheirBudget) {
  for (const char* text : {"uniform", "drift:0.9", "drift:0", "drift:1", "local"}) {
    for (const std::int64_t context : {0, 5, 16, 17, 100}) {
      const Rows rows = rows_of(make(text, 16, seed_), 0, context, 60);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const std::int64_t keys = context + static_cast<std::int64_t>(r) + 1;
        EXPECT_EQ(std::ssize(rows[r]), std::min<std::int64_t>(16, keys))
            << text << " context " << context << " row " << r;
      }
    }
  }
}

TEST_F(GeneratorTest, LocalTakesTheMostRecent) {
  const Rows rows = rows_of(make("local", 4, seed_), 0, 10, 3);
  EXPECT_EQ(rows[0], (std::vector<std::int32_t>{7, 8, 9, 10}));
  EXPECT_EQ(rows[2], (std::vector<std::int32_t>{9, 10, 11, 12}));
}

TEST_F(GeneratorTest, UniformIsUniform) {
  // 20000 rows of 8 of about 64 keys: the count of each of the first 64 keys is binomial with a deviation near 50.
  std::vector<double> hits(64, 0.0);
  double expected = 0;
  for (std::int64_t request = 0; request < 2000; ++request) {
    const Rows rows = rows_of(make("uniform", 8, seed_), request, 63, 10);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      expected += 8.0 / (64.0 + static_cast<double>(r));
      for (const std::int32_t p : rows[r]) {
        if (p < 64) {
          hits[static_cast<std::size_t>(p)] += 1;
        }
      }
    }
  }
  for (std::size_t p = 0; p < hits.size(); ++p) {
    EXPECT_NEAR(hits[p], expected, 6 * std::sqrt(expected)) << "key " << p;
  }
}

TEST_F(GeneratorTest, UniformRowsDoNotDependOnChunks) {
  const Generator generator = make("uniform", 16, seed_);
  const Rows whole = rows_of(generator, 3, 0, 100);
  const Rows part = rows_of(generator, 3, 37, 63);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 37));
}

TEST_F(GeneratorTest, DriftKeepsItsShareOfTheRowBefore) {
  for (const double rho : {0.0, 0.5, 0.9, 1.0}) {
    Generator generator = make("drift:0", 256, seed_);
    generator.rho = rho;
    const Rows rows = rows_of(generator, 1, 4000, 400);
    const auto kept = static_cast<std::int64_t>(std::round(rho * 256));
    double mean = 0;
    for (std::size_t r = 1; r < rows.size(); ++r) {
      const std::int64_t both = shared(rows[r - 1], rows[r]);
      EXPECT_GE(both, kept);
      mean += static_cast<double>(both) / static_cast<double>(rows.size() - 1);
    }
    // A key that was dropped may be drawn again: each of the others with chance about 256 (1 - rho) / 4200.
    const double dropped = 256.0 - static_cast<double>(kept);
    EXPECT_NEAR(mean, static_cast<double>(kept) + dropped * dropped / (4200.0 - static_cast<double>(kept)), 1.0) << rho;
  }
}

// Mean unions, measured apart, for 16384 queries of 2048 keys each at drift 0.9.
TEST_F(GeneratorTest, UnionsOfDriftAreThoseOfTheTargets) {
  const Rows rows = rows_of(make("drift:0.9", 2048, seed_), 0, 0, 16384);
  EXPECT_NEAR(mean_union(rows, 2, 16384), 2089, 2);
  EXPECT_NEAR(mean_union(rows, 4, 16384), 2402, 3);
  EXPECT_NEAR(mean_union(rows, 8, 16384), 2956, 5);
  EXPECT_NEAR(mean_union(rows, 16, 16384), 3862, 10);
}

TEST_F(GeneratorTest, PooledTakesWholePoolsAndTheTail) {
  for (const std::int64_t pool : {1, 4, 5, 16}) {
    const std::int64_t most_pools = 48 / pool;
    for (const std::int64_t context : {0, 50, 203}) {
      Generator generator = make("pooled:4:0.75", 48, seed_);
      generator.pool = pool;
      const Rows rows = rows_of(generator, 2, context, 150);
      std::vector<std::int32_t> before;
      for (std::int64_t r = 0; r < std::ssize(rows); ++r) {
        const std::int64_t keys = context + r + 1;
        std::vector<std::int32_t> pools;
        std::int64_t tail = 0;
        for (const std::int32_t p : rows[static_cast<std::size_t>(r)]) {
          if (p >= keys / pool * pool) {
            ++tail;
          } else if (p % pool == 0) {
            pools.push_back(p / static_cast<std::int32_t>(pool));
          }
        }
        EXPECT_EQ(tail, keys % pool);
        EXPECT_EQ(std::ssize(pools), std::min(most_pools, keys / pool));
        EXPECT_EQ(std::ssize(rows[static_cast<std::size_t>(r)]), std::ssize(pools) * pool + tail);
        if (std::ssize(before) == most_pools) {
          EXPECT_GE(shared(before, pools), std::llround(0.75 * static_cast<double>(most_pools)));
        }
        before = pools;
      }
    }
  }
}

TEST_F(GeneratorTest, SeedsAndRequestsGiveDifferentStreams) {
  for (const char* text : {"uniform", "drift:0.9", "pooled:4:0.9"}) {
    const Rows rows = rows_of(make(text, 32, 7), 0, 1000, 8);
    EXPECT_EQ(rows, rows_of(make(text, 32, 7), 0, 1000, 8));
    EXPECT_NE(rows, rows_of(make(text, 32, 7), 1, 1000, 8));
    EXPECT_NE(rows, rows_of(make(text, 32, 8), 0, 1000, 8));
  }
}

TEST(Generator, TheSameOnEveryMachine) {
  // Computed by a few lines of Python that draw in the same way.
  const Rows rows = rows_of(make("drift:0.5", 4, 1), 0, 1000, 2);
  EXPECT_EQ(rows[0], (std::vector<std::int32_t>{29, 305, 487, 525}));
  EXPECT_EQ(rows[1], (std::vector<std::int32_t>{29, 181, 413, 487}));
}

TEST(Generator, EmptyRequest) { EXPECT_TRUE(rows_of(make("uniform", 4, 0), 0, 100, 0).empty()); }

TEST(Generator, Parses) {
  EXPECT_EQ(parse_generator("uniform").kind, Generator::Kind::uniform);
  EXPECT_EQ(parse_generator("local").kind, Generator::Kind::local);
  const Generator drift = parse_generator("drift:0.75");
  EXPECT_EQ(drift.kind, Generator::Kind::drift);
  EXPECT_EQ(drift.rho, 0.75);
  EXPECT_EQ(drift.topk, 2048);
  const Generator pooled = parse_generator("pooled:16:1");
  EXPECT_EQ(pooled.kind, Generator::Kind::pooled);
  EXPECT_EQ(pooled.pool, 16);
  EXPECT_EQ(pooled.rho, 1.0);
  EXPECT_EQ(pooled.width(), 2048 + 15);
}

TEST(Generator, RefusesWhatItCannotRead) {
  for (const char* text : {"",
                           "even",
                           "Uniform",
                           "uniform:1",
                           "local:",
                           "drift",
                           "drift:",
                           "drift:x",
                           "drift:1.5",
                           "drift:-0.1",
                           "drift:nan",
                           "drift:0.9:4",
                           "drift:0.9 ",
                           "pooled",
                           "pooled:4",
                           "pooled:0:0.9",
                           "pooled:-4:0.9",
                           "pooled:4.5:0.9",
                           "pooled:4:0.9:1",
                           "pooled:99999999999999999999:0.9",
                           "pooled:4:"}) {
    EXPECT_THROW(static_cast<void>(parse_generator(text)), Error) << text;
  }
}

TEST(Generator, RefusesBadFieldsAndShapes) {
  std::vector<std::int32_t> memory(100);
  const View<std::int32_t> index(memory.data(), {4, 8});
  const View<std::int32_t> count(memory.data() + 50, {4});
  Generator generator;
  EXPECT_THROW(generator.fill(0, 0, index, count), Error);  // 2048 columns
  generator.topk = 8;
  EXPECT_NO_THROW(generator.fill(0, 0, index, count));
  EXPECT_THROW(generator.fill(0, -1, index, count), Error);
  EXPECT_THROW(generator.fill(0, std::int64_t{1} << 40, index, count), Error);
  EXPECT_THROW(generator.fill(0, 0, index, View<std::int32_t>(memory.data(), {3})), Error);
  generator.topk = 0;
  EXPECT_THROW(generator.fill(0, 0, index, count), Error);
  generator.topk = 2;
  generator.kind = Generator::Kind::pooled;
  generator.pool = 3;
  EXPECT_THROW(generator.fill(0, 0, index, count), Error);
}

}  // namespace
}  // namespace headrace::selection
