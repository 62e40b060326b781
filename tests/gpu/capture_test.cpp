// SPDX-License-Identifier: Apache-2.0
//
// What engines do with a plan: make it from upper bounds, capture attend in a CUDA graph, change everything the graph
// reads, refresh the plan, replay.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "captured_graph.h"
#include "case_on_device.h"
#include "support/compare.h"
#include "support/random.h"

namespace headrace::test {
namespace {

/// Paths of a plan: one forced for all, or what the router makes of requests of which some are covered.
struct Kind {
  const char* name;
  std::optional<Path> force;
  SelectionRule rule;
};

class Captured : public testing::TestWithParam<Kind> {
 protected:
  /// Two steps within the bounds of the first have the same strides when their longest request and their selection's
  /// width are the same.
  [[nodiscard]] CaseSpec spec(std::vector<RequestShape> requests, std::uint64_t seed) const {
    CaseSpec spec = spec_on_gpu({3, 64, 192, 64, 256}, GetParam().rule, std::move(requests), seed);
    spec.width = 100;
    spec.with_sink = true;
    return spec;
  }

  std::uint64_t seed_ = fresh_seed();
  Random random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
};

void queue(const Plan& made, const CaseOnDevice& problem, const OutputsOnDevice& outputs,
           const device::cuda::DeviceBuffer& workspace, Stream stream) {
  attend(made, problem.weights(), problem.inputs(), outputs.get(),
         {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, stream);
}

TEST_P(Captured, ReplaysWithEverythingChanged) {
  const AttentionCase first(spec({{129, 70}, {64, 0}, {1, 0}, {64, 200}}, seed_));
  Batch bounds = first.batch();
  bounds.exact = false;
  UploadedPlan uploaded(plan_on_gpu(first, bounds, GetParam().force));
  Plan& made = uploaded.get();
  const CaseOnDevice on_device(first);
  OutputBuffer buffer = first.output_buffer();
  const OutputsOnDevice outputs(buffer.outputs());
  const device::cuda::DeviceBuffer workspace(made.workspace_bytes());
  const CapturedGraph graph([&](Stream stream) { queue(made, on_device, outputs, workspace, stream); });
  graph.replay();
  outputs.bring_back();
  EXPECT_EQ(buffer.bits(), run_on_gpu(first, plan_on_gpu(first, bounds, GetParam().force)).bits());

  // Other weights, query, cache, block table and selection, and shorter lengths but for the last request's.
  AttentionCase second(spec({{100, 60}, {63, 0}, {1, 0}, {64, 200}}, seed_ + 1));
  Batch later = second.batch();
  later.exact = false;
  made.refresh(later);
  on_device.replace(second);
  graph.replay();
  outputs.bring_back();
  const OutputBuffer eager = run_on_gpu(second, plan_on_gpu(second, later, GetParam().force));
  EXPECT_EQ(buffer.bits(0, second.tokens()), eager.bits());
}

TEST_P(Captured, AHundredCallsAllocateNothing) {
  // In a capture of this mode an allocation of device memory is an error.
  const AttentionCase problem(spec({{129, 70}, {64, 0}}, seed_));
  const UploadedPlan uploaded(plan_on_gpu(problem, problem.batch(), GetParam().force));
  const Plan& made = uploaded.get();
  const CaseOnDevice on_device(problem);
  OutputBuffer buffer = problem.output_buffer();
  const OutputsOnDevice outputs(buffer.outputs());
  const device::cuda::DeviceBuffer workspace(made.workspace_bytes());
  const CapturedGraph graph([&](Stream stream) {
    for (int i = 0; i < 100; ++i) {
      queue(made, on_device, outputs, workspace, stream);
    }
  });
  graph.replay();
  outputs.bring_back();
  EXPECT_EQ(buffer.bits(), run_on_gpu(problem, made).bits());
}

TEST_P(Captured, LengthsPlannedTooHighGiveTheExactAnswer) {
  const AttentionCase problem(spec({{129, 70}, {64, 0}, {1, 0}, {64, 200}}, seed_));
  const auto oracle = problem.oracle();
  const Batch exact = problem.batch();
  for (std::int32_t more = 1; more <= 4; ++more) {
    std::vector<std::int32_t> query_len(exact.query_len.begin(), exact.query_len.end());
    std::vector<std::int32_t> seq_len(exact.seq_len_bound.begin(), exact.seq_len_bound.end());
    for (std::size_t b = 0; b < seq_len.size(); ++b) {
      seq_len[b] += more;
      query_len[b] += b % 2 == 0 ? more : 0;  // the rest of them too many keys of context
    }
    const Plan made = plan_on_gpu(problem, {query_len, seq_len, false}, GetParam().force);
    const OutputBuffer result = run_on_gpu(problem, made);
    const Comparison found = compare(problem, result, oracle, tolerance_of(DType::bfloat16));
    EXPECT_FALSE(found.failure.has_value()) << more << " too many: " << *found.failure;
    EXPECT_FALSE(result.damage().has_value()) << *result.damage();
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, Captured,
                         testing::Values(Kind{"dense", Path::dense_mha, SelectionRule::none()},
                                         Kind{"masked", Path::masked_mha, SelectionRule::opaque()},
                                         Kind{"mixed", std::nullopt, SelectionRule::lightning(100)}),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace headrace::test
