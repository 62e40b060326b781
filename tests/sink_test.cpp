// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "support/compare.h"
#include "support/run_path.h"

namespace headrace {
namespace {

/// The sinks of this rank's heads may be a column of something wider.
TEST(Sink, MayHaveAStride) {
  constexpr std::int64_t kStride = 3;
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    for (const Path path : kPaths) {
      test::CaseSpec spec;
      spec.geometry.num_heads = 5;
      spec.compute = compute;
      spec.rule = SelectionRule::none();
      spec.requests = {{4, 20}, {9, 0}};
      spec.with_sink = true;
      spec.seed = test::fresh_seed();
      const test::AttentionCase problem(spec);
      const std::int64_t heads = spec.geometry.num_heads;
      Weights weights = problem.weights();
      std::vector<float> apart(static_cast<std::size_t>(heads * kStride), std::numeric_limits<float>::quiet_NaN());
      for (std::int64_t head = 0; head < heads; ++head) {
        apart[static_cast<std::size_t>(head * kStride)] = weights.sink(head);
      }
      weights.sink = View<const float>(apart.data(), 1, {heads, 0, 0, 0}, {kStride, 0, 0, 0});

      test::OutputBuffer result = problem.output_buffer();
      const Plan plan = test::plan_path(problem, path);
      test::GuardedWorkspace workspace(plan.workspace_bytes());
      attend(plan, weights, problem.inputs(), result.outputs(), workspace.span());
      const auto comparison = test::compare(problem, result, problem.oracle(), test::tolerance_of(compute));
      EXPECT_FALSE(comparison.failure) << name_of(path) << ": " << *comparison.failure << "\n" << problem.spec();
    }
  }
}

}  // namespace
}  // namespace headrace
