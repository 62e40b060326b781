// SPDX-License-Identifier: Apache-2.0
// --device, on machines with a GPU and without.
#include <gtest/gtest.h>

#include <string>

#include "headrace/cuda.h"
#include "support/cli.h"

namespace headrace {
namespace {

using test::expect_error;
using test::Json;
using test::recording;
using test::Result;
using test::run;

const char* const kCommands[] = {"route --model glm-5.3-flash --tp 8 --batch 5", "doctor --profile nominal", "bench",
                                 "prefill --model glm-5.3-flash --tp 8 --batch 5"};

TEST(Cli, ADeviceThatIsNotThereIsStatus1) {
  for (const char* command : kCommands) {
    expect_error(std::string(command) + " --device cuda:9999", 1);
  }
  expect_error("verify --model " + recording("glm5_next") + " --device cuda:9999", 1);
}

TEST(Cli, WithoutAGpuTheErrorSaysWhatIsMissing) {
  if (CudaDevice::count() > 0) {
    GTEST_SKIP() << "there is a GPU here";
  }
  const Result result = run("route --model glm-5 --batch 1 --device cuda");
  EXPECT_EQ(result.status, 1);
  EXPECT_TRUE(
      result.err.find("expected a GPU and its driver, got none: no CUDA device was found") != std::string::npos ||
      result.err.find("expected a library built with CUDA (HEADRACE_CUDA), got one without") != std::string::npos)
      << result.err;
  EXPECT_EQ(result.err.substr(0, 20), "headrace: --device: ") << result.err;
}

TEST(Cli, ADeviceThatDoesNotExistIsMisuse) {
  for (const char* device : {"bogus", "cuda:", "cuda:x", "cuda:-1", "cuda:99999", "cuda1", "CUDA"}) {
    expect_error(std::string("route --model glm-5 --batch 1 --device ") + device, 2);
  }
}

TEST(Cli, GpusComputeInBfloat16Only) {
  for (const char* command : kCommands) {
    const Result result = run(std::string(command) + " --dtype float32 --device cuda");
    EXPECT_EQ(result.status, 2) << command;
    EXPECT_NE(result.err.find("--dtype: expected bfloat16"), std::string::npos) << result.err;
  }
}

TEST(Cli, RoutingIsMeasuredOnTheProcessorOnly) { expect_error("bench --routing --device cuda", 2); }

TEST(Cli, TheDefaultDeviceIsTheProcessor) {
  const std::string route = "route --json --model glm-5 --batch 1";
  EXPECT_EQ(run(route).json(), run(route + " --device cpu").json());
  EXPECT_EQ(run(route).json().at("device"), "cpu");
}

TEST(Cli, DoctorAndVersionTellWhatIsThereForGpus) {
  const Json doctor = run("doctor --json --profile nominal").json();
  EXPECT_TRUE(doctor.at("gpus").is_array());
  const Json kernels = run("--version --json").json().at("kernels");
  ASSERT_FALSE(kernels.empty());
  EXPECT_EQ(kernels.at(0).at("device"), "cpu");
  for (std::size_t i = 1; i < kernels.size(); ++i) {
    EXPECT_EQ(kernels.at(i).at("device"), "cuda");
    EXPECT_FALSE(kernels.at(i).at("paths").empty());
    EXPECT_FALSE(kernels.at(i).at("head_dims").empty());
  }
}

}  // namespace
}  // namespace headrace
