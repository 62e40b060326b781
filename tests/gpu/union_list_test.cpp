// SPDX-License-Identifier: Apache-2.0
// Union lists made on the GPU, against their definition.
#include "attention/mqa/union_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "captured_graph.h"
#include "device/cuda/memory.h"
#include "support/errors.h"
#include "support/random.h"
#include "union_list_kit.h"

namespace headrace {
namespace {

using namespace test::union_list_kit;

constexpr std::int64_t kGroups[] = {1, 2, 3, 4, 5, 8, 12, 16, 21, 32, 64};
constexpr int kCases = 12;

// ---- tests ----------------------------------------------------------------------------------------------------------

struct Trial {
  SelectionSpace space = SelectionSpace::request_position;
  std::int64_t group = 1;
};

void PrintTo(const Trial& trial, std::ostream* stream) {  // NOLINT(readability-identifier-naming): GoogleTest's name
  *stream << (trial.space == SelectionSpace::cache_slot ? "slots" : "positions") << ", group " << trial.group;
}

std::vector<Trial> trials() {
  std::vector<Trial> result;
  for (const SelectionSpace space : {SelectionSpace::request_position, SelectionSpace::cache_slot}) {
    for (const std::int64_t group : kGroups) {
      result.push_back({space, group});
    }
  }
  return result;
}

class GpuUnionList : public testing::TestWithParam<Trial> {
 protected:
  [[nodiscard]] std::int64_t group() const { return GetParam().group; }
  Problem problem(const std::vector<Shape>& shapes, std::int64_t width) {
    return random_problem(random_, GetParam().space, group(), shapes, width);
  }

  std::uint64_t seed_ = test::fresh_seed();
  test::Random random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
};

TEST_P(GpuUnionList, HoldsWhatRowsAttendTo) {
  for (int i = 0; i < kCases && !HasFailure(); ++i) {
    expect_lists(problem(random_shapes(random_), random_width(random_)), kKeyBlock * random_.below(2));
  }
}

/// As many columns as GLM's k-pool selections have, and a tail of three.
TEST_P(GpuUnionList, TakesWideSelections) { expect_lists(problem({{70, 3000 + random_.below(3000)}}, 2051)); }

/// More keys than bitmaps hold at once: windows of 12,288 keys for 64 rows, 131,072 for one.
TEST_P(GpuUnionList, SpansWindows) {
  Problem p = problem({{group() + 3, 140'000 + random_.below(3000)}, {3, 10}}, 400);
  p.rule = SelectionRule::opaque();
  expect_lists(p);
}

/// A row of all keys and one of few, so that every window starts in the middle of a block.
TEST_P(GpuUnionList, CoversRowsOverWindows) {
  const std::int64_t context = (group() == 1 ? 270'000 : 110'000) + random_.below(64);
  Problem p = problem({{group(), context}}, 50);
  p.rule = SelectionRule::lightning(p.seq_len[0] - group() / 2);
  p.rows = {{0, p.seq_len[0]}};
  expect_lists(p);
}

TEST_P(GpuUnionList, LeavesOutKeysBeyondItsCapacity) {
  const Problem p = problem({{100, 300}}, 200);
  const std::int64_t capacity = kKeyBlock * (1 + random_.below(3));
  const ProblemOnDevice on_device(p, capacity);
  const device::cuda::OwnedStream stream;
  on_device.build(stream);
  device::cuda::synchronize(stream);
  SCOPED_TRACE(testing::PrintToString(p));
  on_device.expect(expected_lists(p, capacity).lists);
}

/// Whatever the lengths on the device are, nothing but the lists is written, and only the selection's rows are read.
TEST_P(GpuUnionList, SurvivesAnyLengths) {
  for (int i = 0; i < kCases && !HasFailure(); ++i) {
    Problem p = problem(random_shapes(random_), random_width(random_));
    const auto spoil = [&](std::vector<std::int32_t>& values, std::int32_t huge) {
      for (std::int32_t& value : values) {
        const std::int32_t wrong[] = {kLowest, huge, -1, 0, value + 100, value - 100, -value};
        value = random_.chance(0.4) ? wrong[random_.below(7)] : value;
      }
    };
    spoil(p.query_start, kHuge);
    // Slots are looked for among all keys of a request: 2^31 would take long.
    spoil(p.seq_len, GetParam().space == SelectionSpace::cache_slot ? 300'000 : kHuge);
    expect_lists(p);
  }
}

TEST_P(GpuUnionList, ReplaysWithOtherLengths) {
  const std::int64_t width = random_width(random_);
  Problem first = problem({{90, 200}, {40, 0}}, width);
  first.count.clear();
  for (PathRows& rows : first.rows) {
    rows = {0, 300};
  }
  std::vector<Problem> steps = {first};
  for (const std::int32_t moved : {64, 1}) {  // tokens of the first request become the second's; keys vanish
    Problem next = first;
    next.query_start[1] -= moved;
    next.seq_len[0] -= moved + 5;
    next.seq_len[1] += moved;
    std::reverse(next.index.begin(), next.index.end());
    steps.push_back(std::move(next));
  }
  const ProblemOnDevice on_device(first, 320);
  const test::CapturedGraph graph([&](Stream stream) { on_device.build(stream); });
  for (const Problem& step : steps) {
    SCOPED_TRACE(testing::PrintToString(step));
    on_device.replace(step);
    graph.replay();
    on_device.expect(expected_lists(step).lists);
  }
}

INSTANTIATE_TEST_SUITE_P(Trials, GpuUnionList, testing::ValuesIn(trials()), [](const auto& info) {
  return std::string(info.param.space == SelectionSpace::cache_slot ? "slots" : "positions") + "_group_" +
         std::to_string(info.param.group);
});

/// A million keys, and lists that reach over all of them.
TEST(GpuUnionListSizes, GoTo2To20Keys) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  for (const std::int64_t group : {1, 8, 64}) {
    Problem p = random_problem(random, SelectionSpace::request_position, group,
                               {{group, (std::int64_t{1} << 20) - group}}, 2048);
    p.rule = SelectionRule::opaque();
    p.rows = {{0, 1 << 20}};
    expect_lists(p);
  }
}

/// No row of the path needs a selection.
TEST(GpuUnionListSizes, NeedNoSelectionWhereAllIsCovered) {
  const DeviceArray<std::int32_t> query_start(std::vector<std::int32_t>{0, 3});
  const DeviceArray<std::int32_t> seq_len(std::vector<std::int32_t>{66});
  const DeviceArray<PathRows> rows(std::vector<PathRows>{{0, 66}});
  const DeviceArray<TileReference> references(std::vector<TileReference>{{0, 0}, {0, 1}});
  const DeviceArray<UnionTile> tiles(2);
  const DeviceArray<std::int32_t> keys(2 * 128);
  const DeviceArray<std::uint64_t> masks(2 * 2 * 8);
  UnionPass pass;
  pass.rule = SelectionRule::none();
  pass.requests.query_start = View<const std::int32_t>(query_start.data(), {2});
  pass.requests.seq_len = View<const std::int32_t>(seq_len.data(), {1});
  pass.rows = View<const PathRows>(rows.data(), {1});
  pass.tiles = View<const TileReference>(references.data(), {2});
  pass.group = 8;
  pass.tokens = 3;
  pass.keys_bound = 66;
  pass.lists = {View<UnionTile>(tiles.data(), {2}), View<std::int32_t>(keys.data(), {2, 128}),
                View<std::uint64_t>(masks.data(), {2, 2, 8})};
  const device::cuda::OwnedStream stream;
  attention::mqa::build_union_lists(pass, stream);
  device::cuda::synchronize(stream);
  const std::vector<UnionTile> made = tiles.download();
  EXPECT_EQ(made[0].rows, 1);  // position 63 ends a position block
  EXPECT_EQ(made[0].blocks, 1);
  EXPECT_EQ(made[1].token, 1);
  EXPECT_EQ(made[1].rows, 2);
  EXPECT_EQ(made[1].blocks, 2);
  const std::vector<std::uint64_t> bits = masks.download();
  EXPECT_EQ(bits[0], ~std::uint64_t{0});
  EXPECT_EQ(bits[1], 0U);
  EXPECT_EQ(bits[24], 1U);
  EXPECT_EQ(bits[25], 3U);
}

/// Selections and lists whose last entries lie beyond 2^32 elements.
TEST(GpuUnionListAddresses, PassSixteenGigabytes) {
  constexpr std::int64_t kRows = 129;
  constexpr std::int64_t kStride = std::int64_t{1} << 25;
  constexpr std::int64_t kWidth = 5;
  static_assert((kRows - 1) * kStride >= std::int64_t{1} << 32);
  const DeviceArray<std::int32_t> index(kRows * kStride);
  for (std::int64_t row = 0; row < kRows; ++row) {
    const auto first = static_cast<std::int32_t>(row % 7);
    const std::vector<std::int32_t> entries = {first, 100 + first, -5, first, 1000};
    index.bytes().upload(std::as_bytes(std::span(entries)), row * kStride * 4);
  }
  std::vector<TileReference> all(at(kRows));
  for (std::int64_t i = 0; i < kRows; ++i) {
    all[at(i)].tile = static_cast<std::int32_t>(i);
  }
  const DeviceArray<std::int32_t> query_start(std::vector<std::int32_t>{0, kRows});
  const DeviceArray<std::int32_t> seq_len(std::vector<std::int32_t>{200 + kRows});
  const DeviceArray<PathRows> rows(std::vector<PathRows>{{0, 200 + kRows}});
  const DeviceArray<TileReference> references(all);
  const DeviceArray<UnionTile> tiles(kRows);
  const DeviceArray<std::int32_t> keys(kRows * kStride);
  const DeviceArray<std::uint64_t> masks(kRows * (kStride / kKeyBlock));
  UnionPass pass;
  pass.rule = SelectionRule::opaque();
  pass.selection.index = View<const std::int32_t>(index.data(), 2, {kRows, kWidth, 0, 0}, {kStride, 1, 0, 0});
  pass.requests.query_start = View<const std::int32_t>(query_start.data(), {2});
  pass.requests.seq_len = View<const std::int32_t>(seq_len.data(), {1});
  pass.rows = View<const PathRows>(rows.data(), {1});
  pass.tiles = View<const TileReference>(references.data(), {kRows});
  pass.group = 1;
  pass.tokens = kRows;
  pass.keys_bound = 200 + kRows;
  pass.lists = {View<UnionTile>(tiles.data(), {kRows}), View<std::int32_t>(keys.data(), {kRows, kStride}),
                View<std::uint64_t>(masks.data(), {kRows, kStride / kKeyBlock, 1})};
  const device::cuda::OwnedStream stream;
  attention::mqa::build_union_lists(pass, stream);
  device::cuda::synchronize(stream);
  for (std::int64_t row = 0; row < kRows; ++row) {
    std::vector<std::int32_t> list(3);
    keys.bytes().download(std::as_writable_bytes(std::span(list)), row * kStride * 4);
    const auto first = static_cast<std::int32_t>(row % 7);
    ASSERT_EQ(list, (std::vector<std::int32_t>{first, 100 + first, -1})) << "row " << row;
    std::vector<std::uint64_t> mask(1);
    masks.bytes().download(std::as_writable_bytes(std::span(mask)), row * (kStride / kKeyBlock) * 8);
    ASSERT_EQ(mask[0], 3U) << "row " << row;
  }
}

TEST(GpuUnionListInput, OfTheWrongShapeIsRefused) {
  const std::vector<std::int32_t> two = {0, 1};
  const std::vector<PathRows> rows(1);
  const std::vector<TileReference> references(2);
  UnionPass pass;
  pass.selection.index = View<const std::int32_t>(two.data(), {1, 2});
  pass.requests.query_start = View<const std::int32_t>(two.data(), {2});
  pass.requests.seq_len = View<const std::int32_t>(two.data(), {1});
  pass.rows = View<const PathRows>(rows.data(), {1});
  pass.tiles = View<const TileReference>(references.data(), {2});
  pass.group = 4;
  pass.lists = {View<UnionTile>(nullptr, {2}), View<std::int32_t>(nullptr, {2, 128}),
                View<std::uint64_t>(nullptr, {2, 2, 4})};
  const auto refused = [&](const auto& change, const char* what) {
    UnionPass other = pass;
    change(other);
    return test::throws_error([&] { attention::mqa::build_union_lists(other, Stream{}); }, what);
  };
  EXPECT_TRUE(refused([](UnionPass& p) { p.group = 65; }, "1 to 64 rows"));
  EXPECT_TRUE(refused([](UnionPass& p) { p.group = 0; }, "1 to 64 rows"));
  EXPECT_TRUE(refused([](UnionPass& p) { p.group = 8; }, "lists.masks"));
  EXPECT_TRUE(refused([&](UnionPass& p) { p.rows = View<const PathRows>(rows.data(), {0}); }, "rows"));
  EXPECT_TRUE(refused([](UnionPass& p) { p.lists.tiles = View<UnionTile>(nullptr, {1}); }, "lists.tiles"));
  EXPECT_TRUE(refused([](UnionPass& p) { p.lists.keys = View<std::int32_t>(nullptr, {2, 100}); }, "multiple of 64"));
  EXPECT_TRUE(refused(
      [](UnionPass& p) {
        p.lists.keys = View<std::int32_t>(nullptr, 2, {2, 128, 0, 0}, {192, 1, 0, 0});
      },
      "contiguous"));
  EXPECT_TRUE(refused([](UnionPass& p) { p.selection.space = SelectionSpace::cache_slot; }, "page_map"));
  EXPECT_TRUE(refused([&](UnionPass& p) { p.requests.query_start = View<const std::int32_t>(two.data(), {1}); },
                      "query_start"));
  EXPECT_TRUE(
      refused([&](UnionPass& p) { p.selection.count = View<const std::int32_t>(two.data(), {2}); }, "selection.count"));
}

}  // namespace
}  // namespace headrace
