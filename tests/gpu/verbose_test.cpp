// SPDX-License-Identifier: Apache-2.0
//
// HEADRACE_VERBOSE on a GPU: the line of a call, and what it takes. A process reads the variable once, so each value
// has one of its own.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "captured_graph.h"
#include "case_on_device.h"

namespace headrace::test {
namespace {

/// The first request's first 100 rows are covered.
CaseSpec mixed() {
  CaseSpec spec;
  spec.geometry = {3, 512, 192, 64, 256};
  spec.rule = SelectionRule::lightning(100);
  spec.compute = DType::bfloat16;
  spec.out = DType::bfloat16;
  spec.format = CacheFormat::bfloat16;
  spec.requests = {{150, 0}, {1, 9}};
  return spec;
}

std::string line_of(const Plan& made) {
  std::int64_t rows[3] = {};
  for (const RequestPlan& request : made.requests()) {
    for (const Segment& segment : request.segments) {
      rows[static_cast<std::size_t>(segment.path)] += segment.end - segment.begin;
    }
  }
  return "^headrace,attend,cuda:0,sm_90,bfloat16,cache:bf16,h3r512n192p64v256,requests:2,tokens:151,dense_mha:" +
         std::to_string(rows[0]) + ",masked_mha:" + std::to_string(rows[1]) + ",topk_mqa:" + std::to_string(rows[2]) +
         ",workspace:" + std::to_string(made.workspace_bytes()) + ",tables:" + std::to_string(made.table_bytes());
}

enum class Where { on_a_stream, in_a_capture, beside_a_capture };

/// Captures the mixed case or attends to it; the captured operations, none outside a capture.
int attend(Where where) {
  const AttentionCase problem(mixed());
  const UploadedPlan uploaded(plan_on_gpu(problem, problem.batch(), std::nullopt));
  const CaseOnDevice on_device(problem);
  OutputBuffer buffer = problem.output_buffer();
  const OutputsOnDevice outputs(buffer.outputs());
  const device::cuda::DeviceBuffer workspace(uploaded.get().workspace_bytes());
  const device::cuda::OwnedStream own;
  const auto queue = [&](Stream stream) {
    headrace::attend(uploaded.get(), on_device.weights(), on_device.inputs(), outputs.get(),
                     {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, stream);
  };
  switch (where) {
    case Where::on_a_stream:
      queue(own);
      break;
    case Where::in_a_capture: {
      const CapturedGraph graph(queue);
      graph.replay();
      return static_cast<int>(graph.nodes());
    }
    case Where::beside_a_capture: {
      const CapturedGraph graph([&](Stream /*captured*/) { queue(own); });
      break;
    }
  }
  device::cuda::synchronize(own);
  return 0;
}

[[noreturn]] void attend_with(const char* value, Where where) {
  setenv("HEADRACE_VERBOSE", value, 1);
  std::exit(attend(where));
}

class VerboseCudaDeathTest : public testing::Test {
 protected:
  VerboseCudaDeathTest() { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }

  std::string line_ = [] {
    const AttentionCase problem(mixed());
    return line_of(plan_on_gpu(problem, problem.batch(), std::nullopt));
  }();
};

TEST_F(VerboseCudaDeathTest, ALineSaysWhatACallRanButNotHowLong) {
  for (const char* value : {"1", "yes"}) {
    EXPECT_EXIT(attend_with(value, Where::on_a_stream), testing::ExitedWithCode(0), line_ + "\n$");
  }
  EXPECT_EXIT(attend_with("0", Where::on_a_stream), testing::ExitedWithCode(0), "^$");
}

TEST_F(VerboseCudaDeathTest, TimesWhereTheyAreAskedFor) {
  const std::string line = line_ + ",[0-9]+[.][0-9][0-9][0-9] ms\n$";
  EXPECT_EXIT(attend_with("2", Where::on_a_stream), testing::ExitedWithCode(0), line);
  // In the mode that forbids every call that is not safe beside a capture.
  EXPECT_EXIT(attend_with("2", Where::beside_a_capture), testing::ExitedWithCode(0), line);
}

TEST_F(VerboseCudaDeathTest, NothingIsQueuedInACapture) {
  int operations = 0;
  const auto exits_with_some = [&](int status) {
    operations = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    return operations > 0;
  };
  EXPECT_EXIT(attend_with("0", Where::in_a_capture), exits_with_some, "^$");
  for (const char* value : {"1", "2"}) {
    EXPECT_EXIT(attend_with(value, Where::in_a_capture), testing::ExitedWithCode(operations), line_ + "\n$");
  }
}

}  // namespace
}  // namespace headrace::test
