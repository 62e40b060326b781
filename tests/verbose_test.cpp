// SPDX-License-Identifier: Apache-2.0
#include "attention/verbose.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "support/attention_case.h"
#include "support/output_buffer.h"
#include "support/run_path.h"

namespace headrace::test {
namespace {

using attention::CallReport;
using attention::Verbosity;
using attention::verbosity_of;

TEST(Verbose, AValueAsksForLinesOrTimes) {
  for (const char* silent : {static_cast<const char*>(nullptr), "", "0"}) {
    EXPECT_EQ(verbosity_of(silent), Verbosity::silent);
  }
  EXPECT_EQ(verbosity_of("1"), Verbosity::lines);
  EXPECT_EQ(verbosity_of("2"), Verbosity::times);
  for (const char* unknown : {"3", "22", "yes", "-1", " 2"}) {
    EXPECT_EQ(verbosity_of(unknown), Verbosity::lines) << unknown;
  }
}

CaseSpec small() {
  CaseSpec spec;
  spec.geometry = {2, 32, 16, 8, 16};
  spec.compute = DType::float32;
  spec.format = CacheFormat::float32;
  spec.rule = SelectionRule::none();
  spec.requests = {{5, 2}, {1, 0}};
  return spec;
}

TEST(Verbose, TheLineOfACallOnTheProcessor) {
  const AttentionCase problem(small());
  Limits limits;
  limits.device.threads = 1;
  const Plan made = plan(problem.attention(), problem.batch(), limits);
  CallReport report{.plan = made, .tokens = 6, .rows = {5, 1, 0}};
  const std::string line =
      "headrace,attend,cpu:1,float32_tiles,float32,cache:float32,h2r32n16p8v16,requests:2,tokens:6,dense_mha:5,"
      "masked_mha:1,topk_mqa:0";
  EXPECT_EQ(line_of(report), line + "\n");
  report.ms = 1.25;
  EXPECT_EQ(line_of(report), line + ",1.250 ms\n");
}

/// Attends with a value of HEADRACE_VERBOSE, which a process reads once.
[[noreturn]] void attend_with(const char* value) {
  setenv("HEADRACE_VERBOSE", value, 1);
  const AttentionCase problem(small());
  static_cast<void>(run_path(problem, Path::masked_mha, {}));
  std::exit(0);
}

TEST(VerboseDeathTest, ACallOnTheProcessorPrintsItsLine) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  for (const char* value : {"1", "2", "yes"}) {
    EXPECT_EXIT(attend_with(value), testing::ExitedWithCode(0),
                "^headrace,attend,cpu:[0-9]+,.*,requests:2,tokens:6,dense_mha:0,masked_mha:6,topk_mqa:0,"
                "[0-9]+[.][0-9][0-9][0-9] ms\n$");
  }
  for (const char* value : {"", "0"}) {
    EXPECT_EXIT(attend_with(value), testing::ExitedWithCode(0), "^$");
  }
}

}  // namespace
}  // namespace headrace::test
