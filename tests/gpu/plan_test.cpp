// SPDX-License-Identifier: Apache-2.0
//
// A plan's life on a GPU: made, uploaded, attended with, remade, copied, dropped; what each of these takes and leaves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "attention/device_passes.h"
#include "captured_graph.h"
#include "case_on_device.h"
#include "device/cuda/current.h"
#include "device/cuda/probe.h"
#include "support/compare.h"
#include "support/errors.h"
#include "support/random.h"

#if !defined(__SANITIZE_ADDRESS__)
#include "support/counted_allocations.h"
#endif

namespace headrace::test {
namespace {

using device::cuda::DeviceBuffer;

struct Lengths {
  std::vector<std::int32_t> query_len;
  std::vector<std::int32_t> seq_len;

  [[nodiscard]] Batch batch() const { return {query_len, seq_len, false}; }
};

Lengths random_lengths(Random& random, std::int64_t requests, std::int64_t most) {
  Lengths lengths;
  for (std::int64_t b = 0; b < requests; ++b) {
    const std::int64_t queries = random.chance(0.4) ? random.below(3) : random.below(most + 1);
    lengths.query_len.push_back(static_cast<std::int32_t>(queries));
    lengths.seq_len.push_back(static_cast<std::int32_t>(queries + random.below(2 * most + 1)));
  }
  return lengths;
}

Attention random_attention(Random& random) {
  const Geometry geometries[] = {{16, 512, 256, 0, 256}, {3, 512, 192, 64, 256}, {128, 512, 128, 64, 128}};
  const SelectionRule rules[] = {SelectionRule::none(), SelectionRule::opaque(300), SelectionRule::lightning(200),
                                 SelectionRule::kpool(200, 4, true)};
  const CacheFormat formats[] = {CacheFormat::bfloat16, CacheFormat::float32, CacheFormat::fp8};
  return {geometries[random.below(3)],
          rules[random.below(4)],
          0.1,
          DType::bfloat16,
          formats[random.below(3)],
          random.chance(0.3) ? SelectionSpace::cache_slot : SelectionSpace::request_position};
}

class GpuPlan : public testing::Test {
 protected:
  [[nodiscard]] static CaseSpec spec(std::vector<RequestShape> requests, std::uint64_t seed) {
    CaseSpec spec = spec_on_gpu({3, 512, 192, 64, 256}, SelectionRule::lightning(100), std::move(requests), seed);
    spec.width = 100;
    return spec;
  }
  [[nodiscard]] static Limits limits() {
    Limits limits;
    limits.device.cuda = gpu();
    return limits;
  }

  std::uint64_t seed_ = fresh_seed();
  Random random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
};

/// What comes of a plan as it is, or the error.
std::string error_of(const AttentionCase& problem, const Plan& made) {
  const CaseOnDevice on_device(problem);
  OutputBuffer result = problem.output_buffer();
  const OutputsOnDevice outputs(result.outputs());
  const DeviceBuffer workspace(made.workspace_bytes());
  try {
    attend(made, on_device.weights(), on_device.inputs(), outputs.get(),
           {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, Stream{});
    device::cuda::synchronize(Stream{});
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST_F(GpuPlan, IsAttendedWithOnlyOnceItsTablesAreThere) {
  const AttentionCase problem(spec({{20, 30}, {1, 200}}, seed_));
  Plan made = plan_on_gpu(problem, problem.batch(), std::nullopt);
  EXPECT_FALSE(made.has_tables());
  EXPECT_NE(error_of(problem, made).find("plan: expected one whose tables were uploaded"), std::string::npos);
  UploadedPlan uploaded(made);
  EXPECT_EQ(error_of(problem, uploaded.get()), "");
  uploaded.get().refresh(problem.batch());
  EXPECT_EQ(error_of(problem, uploaded.get()), "") << "a refresh leaves tables as they are";
  uploaded.get().remake(problem.batch());
  EXPECT_FALSE(uploaded.get().has_tables());
  EXPECT_NE(error_of(problem, uploaded.get()).find("plan: expected"), std::string::npos);
  uploaded.upload();
  EXPECT_EQ(error_of(problem, uploaded.get()), "");
}

TEST_F(GpuPlan, OfTheProcessorHasNoTables) {
  const AttentionCase problem(spec({{2, 3}}, seed_));
  Plan made = plan(problem.attention(), problem.batch(), {.device = {1}});
  EXPECT_EQ(made.table_bytes(), 0);
  EXPECT_TRUE(throws_error([&] { upload(made, {}, Stream{}); }, "the processor"));
}

TEST_F(GpuPlan, TablesTakeTheirBytesAndNoMore) {
  const AttentionCase problem(spec({{20, 30}, {130, 0}, {1, 200}}, seed_));
  Plan made = plan_on_gpu(problem, problem.batch(), Path::masked_mha);
  ASSERT_GT(made.table_bytes(), 0);
  const DeviceBuffer memory(made.table_bytes() + 64);
  memory.fill(std::byte{0xa5});
  const auto bytes = static_cast<std::size_t>(made.table_bytes());
  EXPECT_TRUE(throws_error([&] { upload(made, {memory.data(), bytes - 1}, Stream{}); }, "tables"));
  EXPECT_TRUE(throws_error([&] { upload(made, {memory.data() + 8, bytes}, Stream{}); }, "divisible by 16"));
  EXPECT_FALSE(made.has_tables());
  upload(made, {memory.data() + 32, bytes}, Stream{});
  device::cuda::synchronize(Stream{});
  std::vector<std::byte> all(bytes + 64);
  memory.download(all);
  const auto outside = [&](std::size_t i) { return i < 32 || i >= 32 + bytes; };
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(!outside(i) || all[i] == std::byte{0xa5}) << i;
  }
}

TEST_F(GpuPlan, LargeTablesGoUpInParts) {
  Attention attention = random_attention(random_);
  attention.geometry = {128, 512, 128, 64, 128};  // tiles of one query
  attention.rule = SelectionRule::opaque(300);
  for (const std::int32_t tokens : {1, 400, 500, 3000, 3600, 9000}) {
    const std::int32_t lengths[] = {tokens, 1};
    Hints hints;
    hints.force = Path::topk_mqa;
    Plan made = plan(attention, {lengths, lengths}, limits(), hints);
    EXPECT_GE(made.table_bytes(), tokens * 8);
    const DeviceBuffer memory(made.table_bytes());
    upload(made, {memory.data(), static_cast<std::size_t>(memory.size_bytes())}, Stream{});
    std::vector<std::byte> host(static_cast<std::size_t>(memory.size_bytes()));
    memory.download(host);
    std::size_t at_byte = 0;
    attention::for_each_table(*made.device_passes(), [&]<class T>(const std::vector<T>& values,
                                                                  const attention::TableAt<T>& at) {
      EXPECT_EQ(static_cast<std::int64_t>(at_byte), at.offset);
      if constexpr (!std::is_same_v<T, cache::cuda::KeyRun>) {  // which has a hole
        EXPECT_TRUE(values.empty() || std::memcmp(host.data() + at_byte, values.data(), values.size() * sizeof(T)) == 0)
            << tokens;
      }
      at_byte += static_cast<std::size_t>(attention::table_bytes<T>(static_cast<std::int64_t>(values.size())));
    });
    EXPECT_EQ(static_cast<std::int64_t>(at_byte), made.table_bytes());
  }
}

TEST_F(GpuPlan, TablesAreBounded) {
  int in_blocks = 0;
  for (int i = 0; i < 300 && !HasFailure(); ++i) {
    const Attention attention = random_attention(random_);
    Limits limits = GpuPlan::limits();
    limits.max_tokens = 1 + random_.below(3000);
    limits.max_seq_len = 1 + random_.below(6000);
    limits.max_requests = random_.chance(0.5) ? 1 + random_.below(9) : 0;
    if (random_.chance(0.7)) {
      limits.workspace_bytes = std::int64_t{1} << (22 + random_.below(8));
    }
    std::int64_t bound = 0;
    try {
      bound = table_bound(attention, limits);
    } catch (const Error&) {
      continue;
    }
    const std::int64_t most_requests =
        limits.max_requests > 0 ? limits.max_requests : std::min<std::int64_t>(limits.max_tokens, 9);
    for (const std::optional<Path> force :
         {std::optional<Path>(), std::optional(Path::masked_mha), std::optional(Path::topk_mqa)}) {
      Lengths lengths;
      std::int64_t left = limits.max_tokens;
      while (std::ssize(lengths.query_len) < most_requests && left > 0) {
        const std::int64_t tokens = random_.chance(0.3) ? 1 : 1 + random_.below(std::min(left, limits.max_seq_len));
        lengths.query_len.push_back(static_cast<std::int32_t>(tokens));
        lengths.seq_len.push_back(static_cast<std::int32_t>(tokens + random_.below(limits.max_seq_len - tokens + 1)));
        left -= tokens;
      }
      Hints hints;
      hints.force = force;
      try {
        const Plan made = plan(attention, lengths.batch(), limits, hints);
        EXPECT_LE(made.table_bytes(), bound)
            << (force ? name_of(*force) : "routed") << ", " << attention.rule.to_string();
        in_blocks += static_cast<int>(std::ranges::any_of(made.device_passes()->mha[1].tables.passes.passes,
                                                          [](const auto& pass) { return pass.has_earlier; }));
      } catch (const Error&) {
        continue;  // a workspace below the batch's least
      }
    }
  }
  EXPECT_GT(in_blocks, 0);
}

TEST_F(GpuPlan, BoundsOfTheLargestLimitsAreRightOrRefused) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const SelectionSpace space : {SelectionSpace::request_position, SelectionSpace::cache_slot}) {
    for (const CacheFormat format : {CacheFormat::bfloat16, CacheFormat::float32}) {
      Attention attention{{128, 512, 128, 64, 128}, SelectionRule::opaque(), 0.1, DType::bfloat16, format, space};
      Limits most = limits();
      std::int64_t before = 0;
      for (const std::int64_t n : {std::int64_t{1000}, std::int64_t{1} << 20, std::int64_t{1} << 26, kMost}) {
        most.max_tokens = most.max_seq_len = most.max_requests = n;
        try {
          const std::int64_t bound = workspace_bound(attention, most);
          EXPECT_GE(bound, before) << n;
          EXPECT_LT(before, std::int64_t{1} << 62);
          before = bound;
          EXPECT_GT(table_bound(attention, most), n) << n;
        } catch (const Error& error) {
          // A page map for each of 2^31 requests.
          EXPECT_TRUE(n == kMost && space == SelectionSpace::cache_slot) << error.what();
          EXPECT_EQ(error.argument(), "limits");
        }
      }
    }
  }
}

TEST_F(GpuPlan, MayBeDroppedAndItsTablesRestoredByTheGraph) {
  const AttentionCase problem(spec({{129, 70}, {64, 0}, {1, 200}}, seed_));
  const CaseOnDevice on_device(problem);
  OutputBuffer buffer = problem.output_buffer();
  const OutputsOnDevice outputs(buffer.outputs());
  std::optional<Plan> made = plan_on_gpu(problem, problem.batch(), std::nullopt);
  const DeviceBuffer workspace(made->workspace_bytes());
  const DeviceBuffer tables(made->table_bytes());
  const CapturedGraph graph([&](Stream stream) {
    upload(*made, {tables.data(), static_cast<std::size_t>(tables.size_bytes())}, stream);
    attend(*made, on_device.weights(), on_device.inputs(), outputs.get(),
           {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, stream);
  });
  const std::int32_t one = 1;
  made->remake({{&one, 1}, {&one, 1}});
  made.reset();
  for (int i = 0; i < 2; ++i) {
    tables.fill(std::byte{0xff});
    workspace.fill(std::byte{0xff});
    graph.replay();
    outputs.bring_back();
    const Comparison found = compare(problem, buffer, problem.oracle(), tolerance_of(DType::bfloat16));
    EXPECT_FALSE(found.failure.has_value()) << *found.failure;
  }
}

TEST_F(GpuPlan, RemadeGivesTheBitsOfAFreshOne) {
  UploadedPlan uploaded([&] {
    const AttentionCase first(spec({{3, 9}}, seed_));
    return plan_on_gpu(first, first.batch(), std::nullopt);
  }());
  Plan& made = uploaded.get();
  for (int i = 0; i < 4; ++i) {
    const Lengths lengths = random_lengths(random_, 1 + random_.below(5), 150);
    std::vector<RequestShape> shapes;
    for (std::size_t b = 0; b < lengths.query_len.size(); ++b) {
      shapes.push_back({lengths.query_len[b], lengths.seq_len[b] - lengths.query_len[b]});
    }
    const AttentionCase problem(spec(shapes, seed_ + static_cast<std::uint64_t>(i)));
    const Plan copy = made;
    const Plan before = made;
    made.remake(problem.batch());
    EXPECT_EQ(copy.table_bytes(), before.table_bytes());
    EXPECT_EQ(copy.has_tables(), true) << "a copy keeps what the plan had";
    const Plan fresh = plan_on_gpu(problem, problem.batch(), std::nullopt);
    EXPECT_EQ(made.table_bytes(), fresh.table_bytes());
    EXPECT_EQ(made.workspace_bytes(), fresh.workspace_bytes());
    EXPECT_EQ(made.explain(), fresh.explain());
    EXPECT_EQ(run_on_gpu(problem, made).bits(), run_on_gpu(problem, fresh).bits());
    uploaded.upload();
  }
}

TEST_F(GpuPlan, ACopyHasPassesOfItsOwn) {
  const AttentionCase problem(spec({{20, 30}, {70, 0}}, seed_));
  Plan made = plan_on_gpu(problem, problem.batch(), std::nullopt);
  const Plan copy = made;
  const std::int32_t one = 1;
  made.remake({{&one, 1}, {&one, 1}});
  const OutputBuffer result = run_on_gpu(problem, copy);
  const Comparison found = compare(problem, result, problem.oracle(), tolerance_of(DType::bfloat16));
  EXPECT_FALSE(found.failure.has_value()) << *found.failure;
}

#if !defined(__SANITIZE_ADDRESS__)
TEST_F(GpuPlan, RemadeAllocatesNothingFromTheSecondStepOfASizeOn) {
  for (const std::int64_t requests : {1, 64, 256}) {
    const Attention attention{
        {16, 512, 256, 0, 256}, SelectionRule::kpool(2048, 4, true), 1.0 / 16.0, DType::bfloat16, CacheFormat::fp8};
    std::vector<Lengths> steps(20);
    for (Lengths& lengths : steps) {
      lengths = random_lengths(random_, requests, 4000);
    }
    Plan made = plan(attention, steps[0].batch(), limits());
    for (const Lengths& lengths : steps) {
      made.remake(lengths.batch());
    }
    const std::size_t before = allocations;
    for (const Lengths& lengths : steps) {
      made.remake(lengths.batch());
      made.refresh(lengths.batch());
    }
    EXPECT_EQ(allocations, before) << requests << " requests";
  }
}
#endif

TEST_F(GpuPlan, TheCallersDeviceStaysCurrent) {
  if (device::cuda::device_count() < 2) {
    GTEST_SKIP() << "takes two GPUs";
  }
  const AttentionCase problem(spec({{20, 30}, {1, 200}}, seed_));
  const device::cuda::CurrentDevice other(1);
  const auto expect_other = [](const char* after) { EXPECT_EQ(device::cuda::current_device(), 1) << after; };
  const auto device = std::make_shared<CudaDevice>(0);
  expect_other("CudaDevice");
  device->warm_up(problem.attention());
  expect_other("warm_up");
  Plan made = plan(problem.attention(), problem.batch(), {.device = {.cuda = device}});
  expect_other("plan");
  made.remake(problem.batch());
  expect_other("remake");
  {
    const device::cuda::CurrentDevice own(0);
    const UploadedPlan uploaded(made);
    const device::cuda::CurrentDevice again(1);
    expect_other("upload");
    EXPECT_EQ(error_of(problem, uploaded.get()), "");
    expect_other("attend");
  }
  EXPECT_THROW(CudaDevice(99), Error);
  expect_other("an error");
}

TEST_F(GpuPlan, APassQueuesNoMoreThanItHasTo) {
  // More keys than any product splits its sums for.
  const AttentionCase problem(spec({{64, 1100}}, seed_));
  AttentionCase covered = [&] {
    CaseSpec all = spec({{64, 1100}}, seed_);
    all.rule = SelectionRule::none();
    return AttentionCase(all);
  }();
  const auto queued = [&](const AttentionCase& of, Path path, bool kept) {
    const UploadedPlan uploaded(plan_on_gpu(of, of.batch(), path));
    const CaseOnDevice on_device(of);
    OutputBuffer buffer = of.output_buffer();
    const OutputsOnDevice outputs(buffer.outputs());
    const DeviceBuffer workspace(uploaded.get().workspace_bytes());
    Inputs inputs = on_device.inputs();
    inputs.selection_kept = kept;
    return CapturedGraph([&](Stream stream) {
             attend(uploaded.get(), on_device.weights(), inputs, outputs.get(),
                    {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, stream);
           })
        .nodes();
  };
  EXPECT_EQ(queued(covered, Path::dense_mha, false), 3U) << "gather, up-projection, attention";
  EXPECT_EQ(queued(problem, Path::masked_mha, false), 4U) << "and masks";
  EXPECT_EQ(queued(problem, Path::masked_mha, true), 3U);
  EXPECT_EQ(queued(problem, Path::topk_mqa, false), 4U) << "absorption, lists, attention, values";
  EXPECT_EQ(queued(problem, Path::topk_mqa, true), 4U) << "a counter cleared instead of lists";
}

}  // namespace
}  // namespace headrace::test
