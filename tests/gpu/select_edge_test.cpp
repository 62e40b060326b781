// SPDX-License-Identifier: Apache-2.0
// The indexer's selection on the GPU: rows without scores, steps sized by bounds, bad lengths and pages, graphs,
// errors.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "captured_graph.h"
#include "select_kit.h"
#include "selection/cuda/select.h"
#include "support/errors.h"

namespace headrace {
namespace {

using namespace test::select_kit;

class GpuSelectEdge : public SelectTest {};

TEST_F(GpuSelectEdge, RowsBelowScoringBeginAreEmpty) {
  Kit kit = exact_kit(geometry(2, 16, 6), {60, 30, 10}, {4, 0, 0});
  kit.append(kit.next({20, 0, 0}));
  const Kit::Step step = kit.next({40, 30, 10});
  kit.append(step);
  const StepOnDevice device(kit, step);
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::vector<std::int64_t>> begins{{33, 0, 11}, {0, 29, 5}, {20, 30, kNever}, {59, 7, 9}};
  for (const std::vector<std::int64_t>& begin : begins) {
    EXPECT_EQ(device.select({kPlenty, begin, 0}), cpu_rows(kit, step, begin));
  }
}

// A step that was sized by a bound: tokens past the last request's, and requests that are longer than promised.
TEST_F(GpuSelectEdge, RowsOfNoRequestAndPastTheBoundAreEmpty) {
  Kit kit = exact_kit(geometry(2, 16, 6), {60, 30, 70}, {4, 0, 0});
  const Kit::Step step = kit.next(kit.seq_len);
  kit.append(step);
  const Rows all = cpu_rows(kit, step);
  for (const std::int64_t more : {0, 5}) {
    Kit::Step larger = step;
    larger.tokens += more;
    larger.query.resize(at(larger.tokens * 2 * 16));
    larger.weight.resize(at(larger.tokens * 2));
    Rows expected(at(larger.tokens));
    for_rows(step, [&](std::size_t, std::int64_t t, std::int64_t position) {
      if (position < 40) {
        expected[at(t)] = all[at(t)];
      }
    });
    EXPECT_EQ(StepOnDevice(kit, larger).select({kPlenty, {}, 40 - 70}), expected);
  }
}

// Whatever the lengths say, nothing outside the tensors is touched, and sound requests get their rows.
TEST_F(GpuSelectEdge, BadLengthsSpoilOnlyTheirRequest) {
  Kit kit = exact_kit(geometry(2, 16, 6), {40, 30, 20}, {4, 0, 0});
  const Kit::Step step = kit.next(kit.seq_len);
  kit.append(step);
  const Rows all = cpu_rows(kit, step);
  for (const std::int32_t seq_len : {-7, 0, 5, std::numeric_limits<std::int32_t>::min()}) {
    Kit::Step bad = step;
    bad.seq_len[1] = seq_len;
    bad.requests.seq_len = View<const std::int32_t>(bad.seq_len.data(), {3});
    const Rows rows = StepOnDevice(kit, bad).select();
    EXPECT_TRUE(std::equal(all.begin(), all.begin() + 40, rows.begin()));
    EXPECT_TRUE(std::equal(all.begin() + 70, all.end(), rows.begin() + 70));
    for (std::size_t t = 40; t < 70 - at(std::max(seq_len, 0)); ++t) {
      EXPECT_TRUE(rows[t].empty());
    }
  }
}

TEST_F(GpuSelectEdge, PagesOutsideTheCacheAreNotRead) {
  Kit kit = exact_kit(geometry(2, 16, 50), {200, 30}, {10, 0, 0});
  const Kit::Step step = kit.next(kit.seq_len);
  kit.append(step);
  const Rows before = StepOnDevice(kit, step).select();
  const auto num_pages = static_cast<std::int32_t>(kit.cache().num_pages);
  for (const std::int32_t page : {-1, num_pages, std::numeric_limits<std::int32_t>::max()}) {
    kit.table[2] = page;
    Kit::Step narrow = step;  // a table without the last page, too
    View<const std::int32_t>& table = narrow.requests.block_table;
    table = View<const std::int32_t>(kit.table.data(), 2, {2, 19, 0, 0}, table.strides());
    const StepOnDevice device(kit, narrow);
    const Rows rows = device.select();
    const Scores scores = device.scores(step);
    expect_own_best(kit, step, scores, rows);
    for_rows(step, [&](std::size_t b, std::int64_t t, std::int64_t position) {
      for (std::int64_t key = 0; key <= position; ++key) {
        ASSERT_EQ(std::isnan(scores[at(t)][at(key)]), b == 0 && (key / 10 == 2 || key >= 190));
      }
    });
    EXPECT_TRUE(std::equal(before.begin() + 200, before.end(), rows.begin() + 200));
  }
}

TEST_F(GpuSelectEdge, NoTokensAndNoRequests) {
  Kit kit = exact_kit(geometry(2, 16, 6), {5, 0}, {4, 0, 0});
  EXPECT_TRUE(StepOnDevice(kit, kit.next({0, 0})).select().empty());
  Kit::Step step = kit.next({5, 0});
  kit.append(step);
  step.query_start = {0};
  step.requests.query_start = View<const std::int32_t>(step.query_start.data(), {1});
  step.requests.seq_len = View<const std::int32_t>(step.seq_len.data(), {0});
  step.requests.block_table = View<const std::int32_t>(kit.table.data(), {0, 1});
  EXPECT_EQ(StepOnDevice(kit, step).select({kPlenty, {}, 20}), Rows(5));
}

TEST_F(GpuSelectEdge, GraphsReplayWithOtherLengthsAndKeys) {
  const IndexerGeometry indexer = pooled(geometry(3, 32, 24), 4, true);
  constexpr std::int64_t kTokens = 50;
  constexpr std::int64_t kLongest = 400;
  const std::int64_t width = indexer.rule().width();
  Kit kit = normal_kit(indexer, {kLongest}, {16, 0, 0});
  const DeviceArray<bfloat16> memory(std::ssize(kit.memory));
  const DeviceArray<bfloat16> query(kTokens * 3 * 32);
  const DeviceArray<float> weight(kTokens * 3);
  const DeviceArray<std::int32_t> query_start(2);
  const DeviceArray<std::int32_t> seq_len(1);
  const DeviceArray<std::int32_t> table(kit.table);
  const DeviceArray<std::int64_t> begin(1);
  const DeviceArray<std::int32_t> index(kTokens * width);
  const DeviceArray<std::int32_t> count(kTokens);
  const DeviceArray<std::byte> workspace(8 * cuda_select_workspace(indexer, 1, kLongest).least);
  MutableCacheView cache = kit.cache();
  cache.data = reinterpret_cast<std::byte*>(memory.data());
  const Requests requests{View<const std::int32_t>(query_start.data(), {2}),
                          View<const std::int32_t>(seq_len.data(), {1}),
                          View<const std::int32_t>(table.data(), {1, table.size()})};
  const test::CapturedGraph graph([&](Stream stream) {
    headrace::select(
        indexer, cache,
        {View<const bfloat16>(query.data(), {kTokens, 3, 32}), View<const float>(weight.data(), {kTokens, 3})},
        requests, View<const std::int64_t>(begin.data(), {1}), kLongest,
        View<std::int32_t>(index.data(), {kTokens, width}), View<std::int32_t>(count.data(), {kTokens}),
        std::span(workspace.data(), at(workspace.size())), *test::gpu(), stream);
  });
  for (const std::int64_t more : {50, 1, 37}) {
    Kit::Step step = kit.next({more});
    kit.append(step);
    const std::int64_t scoring_begin = step.seq_len[0] - random_.below(more + 1);
    const Rows expected = StepOnDevice(kit, step).select({kPlenty, {scoring_begin}, 0});
    step.query.resize(at(query.size()));
    step.weight.resize(at(weight.size()));
    memory.upload(kit.memory);
    query.upload(step.query);
    weight.upload(step.weight);
    query_start.upload(step.query_start);
    seq_len.upload(step.seq_len);
    begin.upload(std::vector<std::int64_t>{scoring_begin});
    graph.replay();
    const std::vector<std::int32_t> columns = index.download();
    const std::vector<std::int32_t> counts = count.download();
    for (std::int64_t t = 0; t < kTokens; ++t) {
      std::vector<std::int32_t> row = t < more ? expected[at(t)] : std::vector<std::int32_t>();
      ASSERT_EQ(counts[at(t)], std::ssize(row)) << "row " << t << " of " << more;
      row.resize(at(width), -1);
      ASSERT_TRUE(std::equal(row.begin(), row.end(), columns.begin() + t * width)) << "row " << t << " of " << more;
    }
  }
}

TEST(GpuSelectWorkspace, IsWhatTheRowsTake) {
  const IndexerGeometry lightning = geometry(32, 128, 2048);
  const IndexerGeometry kpool = pooled(lightning, 4, true);
  EXPECT_EQ(cuda_select_workspace(lightning, 1, 2048).least, 0);
  EXPECT_EQ(cuda_select_workspace(lightning, 1, 2049).least, 4 * 2052);
  EXPECT_EQ(cuda_select_workspace(kpool, 1, 2051).least, 0);
  EXPECT_EQ(cuda_select_workspace(kpool, 1, 4096).least, 4 * 1024);
  EXPECT_EQ(cuda_select_workspace(lightning, 10, 4096).useful, 10 * 4 * 4096);
  EXPECT_EQ(cuda_select_workspace(lightning, 1'000'000, 8192).useful, std::int64_t{32} << 20);
  EXPECT_EQ(cuda_select_workspace(lightning, 1'000'000, 1 << 20).useful, std::int64_t{64} << 20);
  EXPECT_EQ(cuda_select_workspace(lightning, 0, 4096).useful, 4 * 4096);
  using test::throws_error;
  EXPECT_TRUE(
      throws_error([&] { (void)cuda_select_workspace(lightning, 1, std::int64_t{1} << 62); }, "longest_seq_len"));
  EXPECT_TRUE(throws_error([&] { (void)cuda_select_workspace(lightning, 1, -1); }, "longest_seq_len"));
  EXPECT_TRUE(throws_error([&] { (void)cuda_select_workspace(lightning, -1, 10); }, "tokens"));
}

TEST_F(GpuSelectEdge, RefusesWhatDoesNotSuit) {
  using test::throws_error;
  Kit kit = exact_kit(geometry(2, 16, 6), {20}, {4, 0, 0});
  const Kit::Step step = kit.next({20});
  struct Call {
    IndexerGeometry indexer;
    CacheView cache;
    IndexQueries queries;
    Requests requests;
    std::vector<std::int64_t> scoring_begin = {};
    std::int64_t longest = 20;
    std::int64_t width = 6;
    std::int64_t counts = 20;
    std::int64_t workspace = 0;
    std::int64_t offset = 0;
  };
  const Call good{kit.indexer, kit.cache(), kit.queries(step), step.requests};
  std::vector<std::byte> workspace(4096);
  const auto refuses = [&](const auto& spoil, const std::string& part) {
    Call call = good;
    call.workspace = 4096 - 16;
    spoil(call);
    return throws_error(
        [&] {
          headrace::select(call.indexer, call.cache, call.queries, call.requests,
                           call.scoring_begin.empty()
                               ? View<const std::int64_t>()
                               : View<const std::int64_t>(call.scoring_begin.data(), {std::ssize(call.scoring_begin)}),
                           call.longest, View<std::int32_t>(nullptr, {20, call.width}),
                           View<std::int32_t>(nullptr, {call.counts}),
                           std::span(workspace).subspan(at(call.offset), at(call.workspace)), *test::gpu(), Stream{});
        },
        part);
  };
  EXPECT_TRUE(refuses([](Call& c) { c.indexer.head_dim = 8; }, "16 values at a time"));
  EXPECT_TRUE(refuses([](Call& c) { c.indexer.num_heads = 3; }, "index query"));
  EXPECT_TRUE(refuses([](Call& c) { c.indexer.num_heads = 0; }, "num_heads"));
  EXPECT_TRUE(refuses([](Call& c) { c.cache.row_stride = 8; }, "index cache"));
  EXPECT_TRUE(refuses([](Call& c) { c.queries.head_weight = View<const float>(nullptr, {20, 3}); }, "head_weight"));
  EXPECT_TRUE(refuses([](Call& c) { c.queries.query = View<const float>(nullptr, {20, 2, 16}); }, "index query"));
  EXPECT_TRUE(refuses(
      [](Call& c) {
        c.queries.query = View<const bfloat16>(nullptr, 3, {20, 2, 16, 0}, {1, 20, 40, 0});
      },
      "contiguous rows"));
  EXPECT_TRUE(refuses([](Call& c) { c.requests.query_start = c.requests.seq_len; }, "query_start"));
  EXPECT_TRUE(refuses([](Call& c) { c.scoring_begin = {0, 0}; }, "scoring_begin"));
  EXPECT_TRUE(refuses([](Call& c) { c.longest = -1; }, "longest_seq_len"));
  EXPECT_TRUE(refuses([](Call& c) { c.width = 5; }, "at least 6 columns"));
  EXPECT_TRUE(refuses([](Call& c) { c.counts = 19; }, "selection count"));
  EXPECT_TRUE(refuses([](Call& c) { c.workspace = 79; }, "at least 80 bytes"));
  EXPECT_TRUE(refuses([](Call& c) { c.offset = 8; }, "divisible by 16"));
  EXPECT_TRUE(selection::cuda::unmet_requirements(geometry(5, 48, 1)).empty());
}

}  // namespace
}  // namespace headrace
