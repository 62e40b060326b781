// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "headrace/error.h"
#include "headrace/indexer.h"
#include "headrace/selection.h"
#include "support/errors.h"

namespace headrace {
namespace {

// Rows are named by the keys they see.
bool covers_keys(const SelectionRule& rule, std::int64_t keys) { return rule.covers(keys - 1); }

TEST(SelectionRule, LightningCoversUpToItsBudget) {
  const SelectionRule rule = SelectionRule::lightning(2048);
  EXPECT_TRUE(covers_keys(rule, 1));
  EXPECT_TRUE(covers_keys(rule, 2048));
  EXPECT_FALSE(covers_keys(rule, 2049));
  EXPECT_EQ(rule.covered_prefix(), 2048);
  EXPECT_EQ(rule.width(), 2048);
  EXPECT_EQ(rule.keys_at(2047), 2048);
  EXPECT_EQ(rule.keys_at(100000), 2048);
}

TEST(SelectionRule, KpoolWithTailCoversItsBudgetAndAnIncompletePool) {
  const SelectionRule rule = SelectionRule::kpool(2048, 4, true);
  EXPECT_TRUE(covers_keys(rule, 2051));
  EXPECT_FALSE(covers_keys(rule, 2052));
  EXPECT_EQ(rule.covered_prefix(), 2051);
  EXPECT_EQ(rule.width(), 2051);
  const SelectionRule wide = SelectionRule::kpool(2048, 16, true);
  EXPECT_TRUE(covers_keys(wide, 2063));
  EXPECT_FALSE(covers_keys(wide, 2064));
  const SelectionRule fives = SelectionRule::kpool(2045, 5, true);  // 409 pools of 5
  EXPECT_TRUE(covers_keys(fives, 2049));
  EXPECT_FALSE(covers_keys(fives, 2050));
  EXPECT_EQ(fives.width(), 2049);
}

TEST(SelectionRule, KpoolWithoutTailCoversOnlyCompletePools) {
  const SelectionRule rule = SelectionRule::kpool(2048, 4, false);
  EXPECT_FALSE(covers_keys(rule, 1));
  EXPECT_FALSE(covers_keys(rule, 3));
  EXPECT_TRUE(covers_keys(rule, 4));
  EXPECT_FALSE(covers_keys(rule, 2047));
  EXPECT_TRUE(covers_keys(rule, 2048));
  EXPECT_FALSE(covers_keys(rule, 2049));
  EXPECT_FALSE(covers_keys(rule, 2052));
  EXPECT_EQ(rule.covered_prefix(), 0);
  EXPECT_EQ(rule.width(), 2048);
  EXPECT_EQ(rule.keys_at(2), 0);
}

TEST(SelectionRule, NoneCoversEverythingAndOpaqueNothing) {
  EXPECT_TRUE(SelectionRule::none().covers(1000000));
  EXPECT_EQ(SelectionRule::none().covered_prefix(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(SelectionRule::none().width(), 0);
  EXPECT_EQ(SelectionRule::none().keys_at(9), 10);
  EXPECT_FALSE(SelectionRule::opaque().covers(0));
  EXPECT_EQ(SelectionRule::opaque().covered_prefix(), 0);
  EXPECT_EQ(SelectionRule::opaque().width(), 0);
}

// Counts, key by key, what a row with every choice of pools open to it could miss at best.
TEST(SelectionRule, AgreesWithCountingForSmallRules) {
  for (std::int64_t topk = 1; topk <= 20; ++topk) {
    for (std::int64_t pool = 1; pool <= topk; ++pool) {
      if (topk % pool != 0) {
        continue;
      }
      for (const bool tail : {false, true}) {
        const SelectionRule rule = SelectionRule::kpool(topk, pool, tail);
        bool all_covered = true;
        std::int64_t widest = 0;
        for (std::int64_t keys = 1; keys <= 70; ++keys) {
          std::int64_t complete = 0;
          std::int64_t in_tail = 0;
          for (std::int64_t key = 0; key < keys; ++key) {
            in_tail = in_tail + 1 == pool ? 0 : in_tail + 1;
            complete += in_tail == 0 ? 1 : 0;
          }
          std::int64_t attended = tail ? in_tail : 0;
          for (std::int64_t taken = 0; taken < complete && (taken + 1) * pool <= topk; ++taken) {
            attended += pool;
          }
          widest = std::max(widest, attended);
          const std::string what = rule.to_string() + " with keys " + std::to_string(keys);
          EXPECT_EQ(rule.keys_at(keys - 1), attended) << what;
          EXPECT_EQ(rule.covers(keys - 1), attended == keys) << what;
          all_covered = all_covered && attended == keys;
          EXPECT_EQ(rule.covered_prefix() >= keys, all_covered) << what;
        }
        EXPECT_EQ(rule.width(), widest) << rule.to_string();
      }
    }
  }
}

TEST(SelectionRule, PoolsOfOneAreLikeLightning) {
  for (const bool tail : {false, true}) {
    const SelectionRule rule = SelectionRule::kpool(7, 1, tail);
    const SelectionRule lightning = SelectionRule::lightning(7);
    EXPECT_EQ(rule.width(), lightning.width());
    EXPECT_EQ(rule.covered_prefix(), lightning.covered_prefix());
    for (std::int64_t p = 0; p < 20; ++p) {
      EXPECT_EQ(rule.covers(p), lightning.covers(p));
      EXPECT_EQ(rule.keys_at(p), lightning.keys_at(p));
    }
  }
}

TEST(SelectionRule, NamesItself) {
  EXPECT_EQ(SelectionRule::none().to_string(), "none");
  EXPECT_EQ(SelectionRule::lightning(2048).to_string(), "lightning(2048)");
  EXPECT_EQ(SelectionRule::kpool(2048, 4, true).to_string(), "kpool(2048, 4, tail)");
  EXPECT_EQ(SelectionRule::kpool(2048, 4, false).to_string(), "kpool(2048, 4)");
  EXPECT_EQ(SelectionRule::opaque().to_string(), "opaque");
}

TEST(SelectionRule, RefusesBadParameters) {
  EXPECT_THROW(static_cast<void>(SelectionRule::lightning(0)), Error);
  EXPECT_THROW(static_cast<void>(SelectionRule::lightning(-5)), Error);
  EXPECT_THROW(static_cast<void>(SelectionRule::lightning(std::int64_t{1} << 31)), Error);
  EXPECT_THROW(static_cast<void>(SelectionRule::kpool(0, 1, true)), Error);
  EXPECT_THROW(static_cast<void>(SelectionRule::kpool(8, 0, true)), Error);
  EXPECT_THROW(static_cast<void>(SelectionRule::kpool(8, 9, true)), Error);
  EXPECT_NO_THROW(static_cast<void>(SelectionRule::kpool(8, 8, true)));
  EXPECT_NO_THROW(static_cast<void>(SelectionRule::kpool(8, 4, true)));
  for (const bool tail : {false, true}) {
    EXPECT_TRUE(test::throws_error([&] { static_cast<void>(SelectionRule::kpool(2048, 5, tail)); },
                                   "topk: expected a multiple of the pool, 5, got 2048"));
  }
}

TEST(IndexerGeometry, GivesItsRuleAndRowSize) {
  IndexerGeometry indexer;
  indexer.num_heads = 2;
  indexer.head_dim = 64;
  indexer.topk = 2048;
  EXPECT_EQ(indexer.rule(), SelectionRule::lightning(2048));
  EXPECT_EQ(indexer.cache_row_bytes(DType::bfloat16), 128);
  indexer.kpool = true;
  indexer.pool = 4;
  indexer.tail = true;
  EXPECT_EQ(indexer.rule(), SelectionRule::kpool(2048, 4, true));
  EXPECT_EQ(indexer.cache_row_bytes(DType::float32), 512);
  EXPECT_NO_THROW(indexer.validate());
  indexer.rope_dim = 65;
  EXPECT_THROW(indexer.validate(), Error);
  indexer.rope_dim = 0;
  indexer.head_dim = std::int64_t{1} << 60;
  EXPECT_THROW(indexer.validate(), Error);
}

}  // namespace
}  // namespace headrace
