// SPDX-License-Identifier: Apache-2.0
//
// attend on the GPU against the float64 oracle, on cases that the processor's tests are made from.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "case_on_device.h"
#include "headrace/cuda.h"
#include "headrace/error.h"
#include "run_alone.h"
#include "support/attention_case.h"
#include "support/compare.h"
#include "support/errors.h"
#include "support/output_buffer.h"
#include "support/random.h"

namespace headrace::test {
namespace {

const Geometry kGeometries[] = {
    {2, 64, 256, 0, 256}, {3, 64, 192, 64, 256}, {2, 64, 128, 64, 128}, {5, 64, 64, 64, 128}, {1, 64, 128, 0, 128}};

/// A random case over the geometries the kernel is compiled for.
CaseSpec random_spec(Random& random, bool covered) {
  const auto between = [&](std::int64_t least, std::int64_t most) { return least + random.below(most - least + 1); };
  CaseSpec spec;
  spec.geometry = kGeometries[between(0, 4)];
  constexpr CacheFormat kFormats[] = {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8,
                                      CacheFormat::fp8_ds_mla};
  spec.format = kFormats[between(0, 3)];
  if (spec.format == CacheFormat::fp8_ds_mla) {
    spec.geometry.kv_lora_rank = 512;
  }
  spec.compute = DType::bfloat16;
  spec.out = between(0, 1) == 0 ? DType::float32 : DType::bfloat16;
  std::int64_t longest = 1;
  for (std::int64_t n = between(1, 4); n > 0; --n) {
    constexpr std::int64_t kLengths[] = {0, 1, 63, 64, 65, 127, 128, 129, 200, 300};
    RequestShape shape{kLengths[between(0, 9)], between(0, 2) == 0 ? between(0, 700) : kLengths[between(0, 9)]};
    longest = std::max(longest, shape.seq_len());
    spec.requests.push_back(shape);
  }
  spec.page_size = between(1, 70);
  spec.row_gap = between(0, 2);
  spec.page_gap = between(0, 2);
  spec.gap = 8 * between(0, 2);
  spec.width = between(1, longest);
  spec.with_count = between(0, 1) == 0;
  spec.with_sink = between(0, 1) == 0;
  spec.rule = covered ? (between(0, 1) == 0 ? SelectionRule::none() : SelectionRule::lightning(longest))
                      : (between(0, 1) == 0 ? SelectionRule::opaque() : SelectionRule::lightning(between(1, longest)));
  spec.space = !covered && spec.rule.kind() == SelectionRule::Kind::opaque && between(0, 1) == 0
                   ? SelectionSpace::cache_slot
                   : SelectionSpace::request_position;
  spec.spread = between(0, 3) == 0 ? 3.0 : 1.0;
  spec.seed = static_cast<std::uint64_t>(random.below(std::int64_t{1} << 62));
  return spec;
}

class Attend : public testing::TestWithParam<Path> {
 protected:
  std::uint64_t seed_ = fresh_seed();
  Random random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
};

int random_cases() {
  const char* chosen = std::getenv("HEADRACE_GPU_CASES");
  return chosen == nullptr ? 150 : std::atoi(chosen);
}

TEST_P(Attend, EqualsTheOracle) {
  double worst = 0.0;
  int cut = 0;
  for (int i = 0; i < random_cases(); ++i) {
    const CaseSpec spec = random_spec(random_, GetParam() == Path::dense_mha);
    SCOPED_TRACE(testing::Message() << spec);
    const AttentionCase problem(spec);
    const std::int64_t limit = random_limit(random_, problem, GetParam());
    SCOPED_TRACE(testing::Message() << "workspace limit " << limit);
    cut += limit == kNoLimit ? 0 : 1;
    const Plan made = plan_on_gpu(problem, problem.batch(), GetParam(), limit);
    ASSERT_LE(made.workspace_bytes(), limit);
    const OutputBuffer result = run_on_gpu(problem, made);
    const Comparison found = compare(problem, result, problem.oracle(), tolerance_of(DType::bfloat16));
    worst = std::max(worst, found.worst_row);
    ASSERT_FALSE(found.failure.has_value()) << *found.failure;
    ASSERT_FALSE(result.damage().has_value()) << *result.damage();
  }
  std::printf("%d cases, %d of them in slices or blocks: worst row %.2e\n", random_cases(), cut, worst);
}

TEST_P(Attend, BitsDoNotDependOnTheRestOfTheBatch) {
  for (int i = 0; i < 20; ++i) {
    CaseSpec spec = random_spec(random_, GetParam() == Path::dense_mha);
    spec.requests = {{200, 100}, {65, 0}, {1, 300}};
    spec.rule = GetParam() == Path::dense_mha ? SelectionRule::none() : SelectionRule::lightning(100);
    spec.space = SelectionSpace::request_position;
    SCOPED_TRACE(testing::Message() << spec);
    const AttentionCase problem(spec);
    const OutputBuffer first = run_on_gpu(problem, plan_on_gpu(problem, problem.batch(), GetParam(), kNoLimit));
    const OutputBuffer second = run_on_gpu(problem, plan_on_gpu(problem, problem.batch(), GetParam(), kNoLimit));
    ASSERT_EQ(first.bits(), second.bits()) << "two runs differ";
    AttentionCase spoilt(spec);
    spoilt.spoil(1);
    const OutputBuffer beside = run_on_gpu(spoilt, plan_on_gpu(spoilt, spoilt.batch(), GetParam(), kNoLimit));
    ASSERT_EQ(first.bits(0, 200), beside.bits(0, 200)) << "a request with NaN keys spoils the one before it";
    ASSERT_EQ(first.bits(265, 266), beside.bits(265, 266)) << "a request with NaN keys spoils the one after it";
  }
}

/// Rows of requests that other requests are beside: keys are up-projected by other algorithms for up to 128, up to 1024
/// and more packed keys, and so for a row's company.
class AttendInCompany : public Attend {
 protected:
  CaseSpec company() {
    CaseSpec spec = random_spec(random_, GetParam() == Path::dense_mha);
    spec.requests = {{200, 100}, {65, 0}, {1, 300}, {640, 0}};
    for (std::int64_t other = random_.below(28); other > 0; --other) {
      spec.requests.push_back({1 + random_.below(70), random_.below(70)});
    }
    spec.rule = GetParam() == Path::dense_mha ? SelectionRule::none() : SelectionRule::lightning(100);
    spec.space = SelectionSpace::request_position;
    return spec;
  }
  /// Every request alone: whole, or cut at multiples of 64 positions.
  OutputBuffer apart(const AttentionCase& problem, bool cut) {
    const CaseOnDevice on_device(problem);
    OutputBuffer result = problem.output_buffer();
    const OutputsOnDevice outputs(result.outputs());
    for (std::size_t request = 0; request < problem.spec().requests.size(); ++request) {
      const RequestShape& shape = problem.spec().requests[request];
      for (std::int64_t begin = 0; begin < shape.query_len;) {
        const std::int64_t next = ((shape.context_len + begin) / 64 + 1 + random_.below(10)) * 64 - shape.context_len;
        const std::int64_t end = cut ? std::min(shape.query_len, next) : shape.query_len;
        run_alone(problem, on_device, GetParam(), static_cast<std::int64_t>(request), begin, end, outputs.get());
        begin = end;
      }
    }
    outputs.bring_back();
    return result;
  }
  void expect_same_bits(bool cut) {
    for (int i = 0; i < std::min(random_cases(), 20); ++i) {
      const CaseSpec spec = company();
      SCOPED_TRACE(testing::Message() << spec);
      const AttentionCase problem(spec);
      const OutputBuffer together = run_on_gpu(problem, plan_on_gpu(problem, problem.batch(), GetParam(), kNoLimit));
      ASSERT_TRUE(together.bits() == apart(problem, cut).bits());
    }
  }
};

TEST_P(AttendInCompany, BitsAreThoseOfARequestAlone) { expect_same_bits(false); }

TEST_P(AttendInCompany, BitsAreThoseOfAPromptCutAtMultiplesOf64) { expect_same_bits(true); }

INSTANTIATE_TEST_SUITE_P(MhaPaths, AttendInCompany, testing::Values(Path::dense_mha, Path::masked_mha),
                         [](const auto& path) { return std::string(name_of(path.param)); });

INSTANTIATE_TEST_SUITE_P(MhaPaths, Attend, testing::Values(Path::dense_mha, Path::masked_mha),
                         [](const auto& path) { return std::string(name_of(path.param)); });

/// What the flash-attention kernel cannot read or write is refused before anything is queued.
TEST(AttendOnCuda, WhatDoesNotSuitTheMhaPathsIsRefused) {
  for (const Path path : {Path::dense_mha, Path::masked_mha}) {
    CaseSpec spec;
    spec.geometry = {2, 64, 128, 64, 128};
    spec.compute = DType::bfloat16;
    spec.out = DType::bfloat16;
    spec.format = CacheFormat::bfloat16;
    spec.rule = SelectionRule::none();
    spec.requests = {{4, 0}, {3, 0}};
    const AttentionCase problem(spec);
    const CaseOnDevice on_device(problem);
    const UploadedPlan made(plan_on_gpu(problem, problem.batch(), path));
    OutputBuffer result = problem.output_buffer();
    const OutputsOnDevice outputs(result.outputs());
    const device::cuda::DeviceBuffer workspace(made.get().workspace_bytes());
    workspace.fill(std::byte{0x11});
    const auto call = [&](const Inputs& inputs, const Outputs& to) {
      return [&] {
        attend(made.get(), on_device.weights(), inputs, to,
               {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, Stream{});
      };
    };
    Inputs inputs = on_device.inputs();
    inputs.q = ConstAnyView(inputs.q.data(), DType::bfloat16, 3, inputs.q.shape(), {2 * 196, 196, 1, 0});
    EXPECT_TRUE(throws_error(call(inputs, outputs.get()), "q: expected an address divisible by 16"));
    Outputs to = outputs.get();
    to.out = AnyView(to.out.data(), DType::bfloat16, 3, to.out.shape(), {2 * 132, 132, 1, 0});
    EXPECT_TRUE(throws_error(call(on_device.inputs(), to), "out: expected an address divisible by 16"));
    inputs = on_device.inputs();
    inputs.requests.query_start =
        View<const std::int32_t>(inputs.requests.query_start.data(), 1, {3, 0, 0, 0}, {2, 0, 0, 0});
    EXPECT_TRUE(throws_error(call(inputs, outputs.get()), "query_start: expected contiguous"));
    device::cuda::synchronize(Stream{});
    std::vector<std::byte> untouched(static_cast<std::size_t>(workspace.size_bytes()));
    workspace.download(untouched);
    EXPECT_TRUE(std::ranges::all_of(untouched, [](std::byte byte) { return byte == std::byte{0x11}; }));
  }
}

TEST(AttendOnCuda, OtherGeometriesAreRefusedWithTheReason) {
  CaseSpec spec;
  spec.geometry = {2, 64, 96, 64, 128};
  spec.compute = DType::bfloat16;
  spec.rule = SelectionRule::none();
  spec.requests = {{4, 0}};
  const AttentionCase problem(spec);
  try {
    static_cast<void>(plan_on_gpu(problem, problem.batch(), Path::dense_mha));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("160/128"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace headrace::test
