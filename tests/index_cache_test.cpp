// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "headrace/error.h"
#include "support/index_cache_kit.h"

namespace headrace {
namespace {

using test::IndexCacheKit;

IndexerGeometry geometry(std::int64_t pool, std::int64_t dim, bool kpool = true) {
  IndexerGeometry indexer;
  indexer.num_heads = 1;
  indexer.head_dim = dim;
  indexer.topk = 4 * pool;
  indexer.kpool = kpool;
  indexer.pool = pool;
  indexer.tail = true;
  return indexer;
}

template <class T>
class IndexCache : public testing::Test {
 protected:
  IndexCacheKit<T> make(std::int64_t pool, std::vector<std::int64_t> seq_lens, std::int64_t page_size,
                        bool kpool = true) {
    return IndexCacheKit<T>(
        geometry(pool, 6, kpool), std::move(seq_lens), {page_size, 3, 5}, random_, [this] { return random_.normal(); },
        [this] { return 2.0F * random_.normal(); });
  }
  /// Compares every row of the sequences with the inputs: raw, or pooled in double.
  static void expect_rows(IndexCacheKit<T>& kit) {
    // One rounding to T of the result, and those of float32 on the way: relative to the keys that are averaged, which
    // are of order 1, and not to their average, which may cancel.
    const double rounding = sizeof(T) == 2 ? std::ldexp(1.0, -8) : 0.0;
    const double tolerance = 2e-6;
    const std::int64_t dim = kit.indexer.head_dim;
    for (std::size_t b = 0; b < kit.seq_len.size(); ++b) {
      for (std::int64_t p = 0; p < kit.done[b]; ++p) {
        const T* row = kit.row(b, p);
        const bool pooled = kit.indexer.kpool && (p + 1) % kit.indexer.pool == 0;
        if (!pooled) {
          EXPECT_EQ(0, std::memcmp(row, &kit.key[b][static_cast<std::size_t>(p * dim)],
                                   static_cast<std::size_t>(dim) * sizeof(T)))
              << "request " << b << " position " << p;
        } else {
          const std::vector<double> expected = kit.candidate_key(b, p / kit.indexer.pool);
          for (std::int64_t d = 0; d < dim; ++d) {
            const double e = expected[static_cast<std::size_t>(d)];
            EXPECT_NEAR(static_cast<double>(static_cast<float>(row[d])), e,
                        rounding * std::abs(e) + tolerance * (std::abs(e) + 1.0))
                << "request " << b << " position " << p << " channel " << d;
          }
        }
        if (kit.indexer.kpool) {
          EXPECT_EQ(0, std::memcmp(row + dim, &kit.gate[b][static_cast<std::size_t>(p * dim)],
                                   static_cast<std::size_t>(dim) * sizeof(T)));
        }
      }
    }
  }
  /// Every byte that belongs to no token still is what it was.
  static void expect_gaps_untouched(IndexCacheKit<T>& kit) {
    std::vector<T> rest = kit.memory;
    for (std::size_t b = 0; b < kit.seq_len.size(); ++b) {
      for (std::int64_t p = 0; p < kit.done[b]; ++p) {
        const auto at = static_cast<std::size_t>(kit.row(b, p) - kit.memory.data());
        std::memset(static_cast<void*>(rest.data() + at), 0xff, static_cast<std::size_t>(kit.row_values()) * sizeof(T));
      }
    }
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(rest.data());
    EXPECT_TRUE(std::all_of(bytes, bytes + rest.size() * sizeof(T), [](std::uint8_t x) { return x == 0xff; }));
  }
  static bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
  }

  std::uint64_t seed_ = test::fresh_seed();
  test::Random random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
};

using ComputeTypes = testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(IndexCache, ComputeTypes);

TYPED_TEST(IndexCache, HoldsKeysGatesAndPooledKeys) {
  for (const std::int64_t pool : {1, 4, 16}) {
    for (const std::int64_t page_size : {1, 3, 5, 64}) {
      SCOPED_TRACE(testing::Message() << "pool " << pool << " page size " << page_size);
      auto kit = this->make(pool, {70, 0, 15, 16, 1}, page_size);
      kit.append(kit.next(kit.seq_len), 2);
      this->expect_rows(kit);
      this->expect_gaps_untouched(kit);
    }
  }
}

TYPED_TEST(IndexCache, LightningHoldsKeysOnly) {
  auto kit = this->make(1, {33, 7}, 5, false);
  kit.append(kit.next(kit.seq_len));
  this->expect_rows(kit);
  this->expect_gaps_untouched(kit);
}

TYPED_TEST(IndexCache, PoolsOfOneKeepTheKeyBitForBit) {
  auto kit = this->make(1, {40}, 3);
  kit.append(kit.next({40}));
  for (std::int64_t p = 0; p < 40; ++p) {
    EXPECT_EQ(0, std::memcmp(kit.row(0, p), &kit.key[0][static_cast<std::size_t>(p * 6)], 6 * sizeof(TypeParam)));
  }
}

TYPED_TEST(IndexCache, ChunksGiveTheSameBits) {
  for (int round = 0; round < 60; ++round) {
    const std::int64_t pool = 1 + this->random_.below(17);
    auto whole = this->make(pool, {this->random_.below(90), this->random_.below(90), 3}, 1 + this->random_.below(20));
    auto chunked = whole;
    whole.append(whole.next(whole.seq_len), 3);
    while (!chunked.finished()) {
      chunked.append(chunked.next(chunked.some(this->random_, 1 + this->random_.below(30))),
                     1 + static_cast<int>(this->random_.below(3)));
    }
    ASSERT_TRUE(this->same_bytes(whole.memory, chunked.memory)) << "round " << round << " pool " << pool;
  }
}

// A prefix found in the cache is skipped by -1 in the slot mapping; the pool is read from what is there.
TYPED_TEST(IndexCache, SkipsTokensWithoutASlot) {
  auto kit = this->make(4, {11}, 3);
  kit.append(kit.next({11}));
  const auto complete = kit.memory;
  kit.done = {0};
  auto step = kit.next({11});
  for (const std::size_t skipped : {0U, 1U, 2U, 3U, 5U, 10U}) {
    step.slots[skipped] = -1;
    for (std::size_t d = 0; d < 6; ++d) {
      step.key[skipped * 6 + d] = static_cast<TypeParam>(77.0F);
    }
  }
  kit.append(step);
  EXPECT_TRUE(this->same_bytes(kit.memory, complete));
}

// A request that is cut back and continues otherwise writes the pool's last token anew and pools again.
TYPED_TEST(IndexCache, RewrittenTokensPoolAnew) {
  auto kit = this->make(4, {12}, 5);
  kit.append(kit.next({12}));
  for (std::size_t i = 6 * 6; i < kit.key[0].size(); ++i) {
    kit.key[0][i] = static_cast<TypeParam>(this->random_.normal());
  }
  kit.done = {6};
  kit.append(kit.next({6}));
  this->expect_rows(kit);
}

TYPED_TEST(IndexCache, LargeGatesDoNotOverflow) {
  auto kit = this->make(4, {4}, 64);
  for (std::size_t i = 0; i < kit.gate[0].size(); ++i) {
    kit.gate[0][i] = static_cast<TypeParam>(i / 6 == 2 ? 3e4F : -3e4F);
  }
  kit.append(kit.next({4}));
  EXPECT_EQ(0, std::memcmp(kit.row(0, 3), &kit.key[0][2 * 6], 6 * sizeof(TypeParam)));
}

TYPED_TEST(IndexCache, NoTokens) {
  auto kit = this->make(4, {5, 0}, 4);
  const auto before = kit.memory;
  kit.append(kit.next({0, 0}));
  EXPECT_TRUE(this->same_bytes(kit.memory, before));
}

TYPED_TEST(IndexCache, BadInputWritesNothing) {
  auto kit = this->make(4, {11}, 2);
  const auto before = kit.memory;
  const auto good = kit.next({11});
  const auto refuses = [&](const auto& spoil) {
    auto step = good;
    step.requests.query_start = View<const std::int32_t>(step.query_start.data(), {2});
    step.requests.seq_len = View<const std::int32_t>(step.seq_len.data(), {1});
    const auto table = kit.table;
    spoil(step);
    EXPECT_THROW(kit.append(step), Error);
    kit.table = table;
    EXPECT_TRUE(this->same_bytes(kit.memory, before));
  };
  const std::int64_t slots = kit.cache().num_slots();
  refuses([&](auto& step) { step.slots[10] = slots; });
  refuses([&](auto& step) { step.slots[10] = -2; });
  refuses([&](auto&) { kit.table[2] = -1; });  // the second pool's page
  refuses([&](auto&) { kit.table[2] = static_cast<std::int32_t>(slots / 2); });
  refuses([&](auto& step) { step.requests.block_table = View<const std::int32_t>(kit.table.data(), {1, 3}); });
  refuses([&](auto& step) { step.requests.block_table = View<const std::int32_t>(kit.table.data(), {2, 3}); });
  refuses([&](auto& step) { step.query_start[0] = 1; });
  refuses([&](auto& step) { step.query_start[1] = 10; });
  refuses([&](auto& step) { step.query_start[1] = 12; });
  refuses([&](auto& step) { step.query_start[1] = -1; });
  refuses([&](auto& step) { step.seq_len[0] = 10; });
  refuses([&](auto& step) { step.seq_len[0] = -11; });
  kit.append(good);
  this->expect_rows(kit);
}

// Pages that nothing is read from may hold anything: here the page of the incomplete pool at the end.
TYPED_TEST(IndexCache, ReadsOnlyThePagesOfCompletedPools) {
  auto kit = this->make(4, {10}, 4);
  const auto step = kit.next({10});
  kit.table[2] = -7;
  EXPECT_NO_THROW(kit.append(step));
}

TEST(IndexCacheErrors, NamesWhatIsWrong) {
  std::vector<float> memory(4096);
  const MutableCacheView cache{reinterpret_cast<std::byte*>(memory.data()), 8, 4, 4 * 64, 64};
  const std::vector<std::int32_t> start{0, 2};
  const std::vector<std::int32_t> seq_len{2};
  const std::vector<std::int32_t> pages{0};
  const Requests requests{View<const std::int32_t>(start.data(), {2}), View<const std::int32_t>(seq_len.data(), {1}),
                          View<const std::int32_t>(pages.data(), {1, 1})};
  const std::vector<std::int64_t> slots{0, 1};
  const View<const std::int64_t> mapping(slots.data(), {2});
  const View<const float> rows(memory.data(), {2, 8});
  const View<const float> bias(memory.data(), {2, 8});
  const IndexerGeometry indexer = geometry(2, 8);
  const auto append = [&](const IndexerGeometry& g, DType compute, ConstAnyView key, ConstAnyView gate,
                          View<const float> b) {
    append_index_keys(g, compute, cache, key, gate, b, requests, mapping);
  };
  EXPECT_NO_THROW(append(indexer, DType::float32, rows, rows, bias));
  EXPECT_THROW(append(indexer, DType::float32, rows, ConstAnyView(), bias), Error);
  EXPECT_THROW(append(indexer, DType::float32, rows, rows, View<const float>()), Error);
  EXPECT_THROW(append(indexer, DType::float32, rows, rows, View<const float>(memory.data(), {3, 8})), Error);
  EXPECT_THROW(append(indexer, DType::bfloat16, rows, rows, bias), Error);
  EXPECT_THROW(append(indexer, DType::int32, rows, rows, bias), Error);
  EXPECT_THROW(append(indexer, DType::float32, View<const float>(memory.data(), {2, 7}), rows, bias), Error);
  EXPECT_THROW(append(geometry(2, 9), DType::float32, rows, rows, bias), Error);
  EXPECT_THROW(append(geometry(1, 8, false), DType::float32, rows, rows, bias), Error);
  EXPECT_NO_THROW(append(geometry(1, 8, false), DType::float32, rows, ConstAnyView(), View<const float>()));
  EXPECT_THROW(append(geometry(0, 8), DType::float32, rows, rows, bias), Error);
}

}  // namespace
}  // namespace headrace
