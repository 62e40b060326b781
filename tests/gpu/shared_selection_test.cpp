// SPDX-License-Identifier: Apache-2.0
//
// Layers that share a selection on the GPU: what a path made of it is used again exactly where the plan says that it is
// kept, whatever other paths the plan takes, and bits are those of a call that makes it anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "attention/mqa/union_list.h"
#include "case_on_device.h"
#include "headrace/error.h"
#include "support/attention_case.h"
#include "support/compare.h"
#include "support/output_buffer.h"
#include "support/random.h"

namespace headrace::test {
namespace {

/// A batch and the paths its plan takes.
struct Kind {
  const char* name;
  std::set<Path> paths;
  std::vector<RequestShape> requests;
  SelectionRule rule;
  SelectionSpace space = SelectionSpace::request_position;
  CacheFormat format = CacheFormat::bfloat16;
  std::int64_t padding = 0;
  std::optional<Path> force = std::nullopt;
  double mqa_rate = 1.0;   ///< of topk_mqa, in that of the nominal profile
  double mask_rate = 1.0;  ///< of lists and masks, likewise
};

std::ostream& operator<<(std::ostream& stream, const Kind& kind) { return stream << kind.name; }

const Kind kKinds[] = {
    {.name = "topk",
     .paths = {Path::topk_mqa},
     .requests = {{70, 100}, {5, 60}},
     .rule = SelectionRule::opaque(),
     .force = Path::topk_mqa},
    {.name = "topk_in_slots",
     .paths = {Path::topk_mqa},
     .requests = {{70, 100}, {5, 60}},
     .rule = SelectionRule::opaque(),
     .space = SelectionSpace::cache_slot,
     .force = Path::topk_mqa},
    // Keys of the first request are read so often that they are converted, in a stage of its own.
    {.name = "topk_in_stages",
     .paths = {Path::topk_mqa},
     .requests = {{200, 0}, {2, 900}},
     .rule = SelectionRule::lightning(60),
     .format = CacheFormat::fp8,
     .force = Path::topk_mqa},
    {.name = "topk_in_wide_rows",
     .paths = {Path::topk_mqa},
     .requests = {{70, 100}, {5, 60}},
     .rule = SelectionRule::lightning(40),
     .padding = 160,
     .force = Path::topk_mqa},
    {.name = "masked",
     .paths = {Path::masked_mha},
     .requests = {{70, 100}, {5, 60}},
     .rule = SelectionRule::opaque(),
     .force = Path::masked_mha},
    {.name = "masked_in_slots",
     .paths = {Path::masked_mha},
     .requests = {{70, 100}, {5, 60}},
     .rule = SelectionRule::opaque(),
     .space = SelectionSpace::cache_slot,
     .force = Path::masked_mha},
    {.name = "dense_and_topk",
     .paths = {Path::dense_mha, Path::topk_mqa},
     .requests = {{60, 0}, {9, 900}},
     .rule = SelectionRule::lightning(60)},
    {.name = "dense_and_topk_in_a_request",
     .paths = {Path::dense_mha, Path::topk_mqa},
     .requests = {{460, 0}},
     .rule = SelectionRule::lightning(400),
     .mask_rate = 0.05},
    {.name = "dense_and_masked",
     .paths = {Path::dense_mha, Path::masked_mha},
     .requests = {{60, 0}, {150, 0}, {9, 300}},
     .rule = SelectionRule::lightning(60),
     .mqa_rate = 0.001},
    {.name = "all_three",
     .paths = {Path::dense_mha, Path::masked_mha, Path::topk_mqa},
     .requests = {{60, 0}, {150, 0}, {2, 2000}},
     .rule = SelectionRule::lightning(60),
     .mqa_rate = 0.05},
};

class SharedSelection : public testing::TestWithParam<Kind> {
 protected:
  [[nodiscard]] CaseSpec spec(std::uint64_t seed) const {
    CaseSpec spec;
    spec.geometry = {8, 512, 192, 64, 256};
    spec.rule = GetParam().rule;
    spec.compute = DType::bfloat16;
    spec.out = DType::bfloat16;
    spec.format = GetParam().format;
    spec.requests = GetParam().requests;
    spec.page_size = 16;
    spec.width = 40;
    spec.padding = GetParam().padding;
    spec.space = GetParam().space;
    spec.with_count = false;
    spec.gap = 8;
    spec.seed = seed;
    return spec;
  }

  /// @throws Error where the paths cannot stay within the limit
  [[nodiscard]] Plan plan_within(std::int64_t limit) const {
    Limits limits;
    limits.workspace_bytes = limit;
    limits.device.cuda = gpu();
    Hints hints;
    hints.profile = Profile::nominal_cuda();
    hints.profile->mqa_gflops *= GetParam().mqa_rate;
    hints.profile->mask_gkeys *= GetParam().mask_rate;
    hints.force = GetParam().force;
    return plan(problem_.attention(), problem_.batch(), limits, hints);
  }

  /// The first layer's inputs but for the selection: one of no keys.
  [[nodiscard]] Inputs without_keys() const {
    Inputs inputs = layer_.inputs();
    inputs.selection.index = View<const std::int32_t>(no_keys_.data(), {problem_.tokens(), 1});
    return inputs;
  }

  [[nodiscard]] OutputBuffer run(const Plan& made, Inputs inputs, bool kept,
                                 const device::cuda::DeviceBuffer& workspace) const {
    inputs.selection_kept = kept;
    return run_with(problem_, layer_, made, inputs, workspace, Stream{});
  }
  /// In a workspace of its own.
  [[nodiscard]] OutputBuffer run_afresh(const Plan& made, const Inputs& inputs) const {
    return run(made, inputs, false, workspace_of(made));
  }

  [[nodiscard]] static device::cuda::DeviceBuffer workspace_of(const Plan& made, std::byte content = std::byte{0xff}) {
    device::cuda::DeviceBuffer workspace(made.workspace_bytes());
    workspace.fill(content);
    return workspace;
  }

  static std::set<Path> paths_of(const Plan& made) {
    std::set<Path> paths;
    for (const RequestPlan& request : made.requests()) {
      for (const Segment& segment : request.segments) {
        paths.insert(segment.path);
      }
    }
    return paths;
  }
  static std::set<Path> keepers(const Plan& made) {
    std::set<Path> paths;
    std::ranges::copy_if(kPaths, std::inserter(paths, paths.end()),
                         [&](Path path) { return made.kept_bytes(path) > 0; });
    return paths;
  }

  std::uint64_t seed_ = fresh_seed();
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
  AttentionCase problem_{spec(seed_)};
  CaseOnDevice layer_{problem_};
  device::cuda::DeviceArray<std::int32_t> no_keys_{
      std::vector<std::int32_t>(static_cast<std::size_t>(problem_.tokens()), -1)};
};

TEST_P(SharedSelection, IsNotReadAgainWhereThePlanKeepsWhatWasMadeOfIt) {
  const Plan made = plan_within(kNoLimit);
  ASSERT_EQ(paths_of(made), GetParam().paths) << made.explain();
  std::set<Path> selecting = GetParam().paths;
  selecting.erase(Path::dense_mha);
  ASSERT_EQ(keepers(made), selecting) << made.explain();
  EXPECT_NE(made.explain().find("layers that share a selection"), std::string::npos) << made.explain();

  const device::cuda::DeviceBuffer workspace = workspace_of(made);
  const OutputBuffer first = run(made, layer_.inputs(), false, workspace);
  const Comparison found = compare(problem_, first, problem_.oracle(), tolerance_of(DType::bfloat16));
  ASSERT_FALSE(found.failure.has_value()) << *found.failure;
  // Were the selection read, rows would attend to nothing.
  ASSERT_NE(first.bits(), run_afresh(made, without_keys()).bits());
  for (int layer = 1; layer < 4; ++layer) {
    ASSERT_EQ(first.bits(), run(made, without_keys(), true, workspace).bits()) << "layer " << layer;
  }
}

TEST_P(SharedSelection, GivesAnotherLayerTheBitsOfACallOfItsOwn) {
  const Plan made = plan_within(kNoLimit);
  const device::cuda::DeviceBuffer workspace = workspace_of(made);
  const OutputBuffer first = run(made, layer_.inputs(), false, workspace);
  // Another layer's queries. Its keys lie in the same pages, so that they may be the first one's.
  const AttentionCase other(spec(seed_ + 1));
  const CaseOnDevice others(other);
  Inputs inputs = layer_.inputs();
  inputs.q = others.inputs().q;
  const OutputBuffer second = run(made, inputs, true, workspace);
  ASSERT_NE(first.bits(), second.bits());
  EXPECT_EQ(second.bits(), run_afresh(made, inputs).bits());
  EXPECT_EQ(first.bits(), run(made, layer_.inputs(), true, workspace).bits());
}

TEST_P(SharedSelection, IsReadAgainWhereTheWorkspaceHasNoRoomToKeepAnything) {
  std::optional<Plan> made = plan_within(kNoLimit);
  // Each limit is too small for something that was kept before.
  for (int limits = 0; limits < 8 && !keepers(*made).empty(); ++limits) {
    const std::int64_t limit = made->workspace_bytes() - 1;
    made = plan_within(limit);
    SCOPED_TRACE(made->explain());
    ASSERT_LE(made->workspace_bytes(), limit);
    const device::cuda::DeviceBuffer workspace = workspace_of(*made);
    const OutputBuffer first = run(*made, layer_.inputs(), false, workspace);
    ASSERT_EQ(first.bits(), run(*made, layer_.inputs(), true, workspace).bits());
  }
  ASSERT_EQ(keepers(*made), std::set<Path>()) << made->explain();
  EXPECT_EQ(made->explain().find("layers that share a selection"), std::string::npos) << made->explain();
  const device::cuda::DeviceBuffer workspace = workspace_of(*made);
  static_cast<void>(run(*made, layer_.inputs(), false, workspace));
  EXPECT_EQ(run(*made, without_keys(), true, workspace).bits(), run_afresh(*made, without_keys()).bits());
}

TEST_P(SharedSelection, OfWhichNothingWasMadeHarmsNothing) {
  const Plan made = plan_within(kNoLimit);
  for (const unsigned byte : {0x00U, 0x01U, 0x7fU, 0xffU}) {
    // The word on the workspace is a lie.
    const OutputBuffer result =
        run(made, layer_.inputs(), true, workspace_of(made, std::byte{static_cast<std::uint8_t>(byte)}));
    ASSERT_FALSE(result.damage().has_value()) << *result.damage();
  }
}

/// Lists whose tiles are sound, and masks, of anything.
TEST_P(SharedSelection, OfWhichGarbageWasMadeHarmsNothing) {
  const Plan made = plan_within(kNoLimit);
  const device::cuda::DeviceBuffer workspace = workspace_of(made);
  const OutputBuffer honest = run(made, layer_.inputs(), false, workspace);
  const std::int64_t masks = made.kept_bytes(Path::masked_mha);
  const std::int64_t tiles =
      made.blocking(Path::topk_mqa).query_slice / attention::mqa::group_of(problem_.attention().geometry.num_heads);
  const auto tile_bytes = tiles * static_cast<std::int64_t>(sizeof(attention::mqa::UnionTile));
  const std::int64_t lists = masks + (tile_bytes + 63) / 64 * 64;
  Random random(seed_);
  const auto spoil = [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int32_t> garbage(static_cast<std::size_t>(std::max<std::int64_t>(end - begin, 0) / 4));
    for (std::int32_t& value : garbage) {
      const bool is_position = random.chance(0.7);
      value = static_cast<std::int32_t>(is_position ? random.below(4000) - 5
                                                    : random.below(std::int64_t{1} << 32) - (std::int64_t{1} << 31));
    }
    workspace.upload(std::as_bytes(std::span(garbage)), begin);
  };
  spoil(0, masks);
  spoil(lists, masks + made.kept_bytes(Path::topk_mqa));
  const OutputBuffer result = run(made, layer_.inputs(), true, workspace);
  ASSERT_NE(result.bits(), honest.bits()) << "nothing of the garbage was read";
  ASSERT_FALSE(result.damage().has_value()) << *result.damage();
}

INSTANTIATE_TEST_SUITE_P(Plans, SharedSelection, testing::ValuesIn(kKinds),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST(SharedSelectionPlans, StayWithinTheLimitAndTheBound) {
  const std::uint64_t seed = fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  int keeping = 0;
  int crowded = 0;
  for (int i = 0; i < 200; ++i) {
    Attention attention;
    attention.geometry = {1 + random.below(20), 512, 192, 64, 256};
    attention.rule = SelectionRule::lightning(1 + random.below(200));
    attention.scale = 0.0625;
    attention.format = random.chance(0.5) ? CacheFormat::bfloat16 : CacheFormat::fp8;
    Limits limits;
    limits.device.cuda = gpu();
    limits.max_tokens = 1 + random.below(600);
    limits.max_seq_len = 1 + random.below(3000);
    std::vector<std::int32_t> query_len;
    std::vector<std::int32_t> seq_len;
    for (std::int64_t left = limits.max_tokens; left > 0 && query_len.size() < 6;) {
      const std::int64_t tokens = 1 + random.below(std::min(left, limits.max_seq_len));
      query_len.push_back(static_cast<std::int32_t>(tokens));
      seq_len.push_back(static_cast<std::int32_t>(tokens + random.below(limits.max_seq_len - tokens + 1)));
      left -= tokens;
    }
    Hints hints;
    hints.profile = Profile::nominal_cuda();
    hints.profile->mqa_gflops /= static_cast<double>(1 + random.below(100));
    const Batch batch{query_len, seq_len, random.chance(0.5)};
    const Plan free = plan(attention, batch, limits, hints);
    EXPECT_LE(free.workspace_bytes(), workspace_bound(attention, limits));
    const bool keeps = free.kept_bytes(Path::masked_mha) + free.kept_bytes(Path::topk_mqa) > 0;
    keeping += keeps ? 1 : 0;
    limits.workspace_bytes = free.workspace_bytes() - 1;
    try {
      const std::int64_t bound = workspace_bound(attention, limits);
      const Plan limited = plan(attention, batch, limits, hints);
      EXPECT_LE(limited.workspace_bytes(), std::min(bound, limits.workspace_bytes)) << limited.explain();
      ++crowded;
    } catch (const Error& error) {
      EXPECT_EQ(error.argument(), "limits.workspace_bytes") << error.what();  // below what a path needs at least
    }
  }
  EXPECT_GT(keeping, 50);
  EXPECT_GT(crowded, 50);
}

}  // namespace
}  // namespace headrace::test
