// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>

#include "adversary.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::printf("emulated_tests: HEADRACE_EMULATOR_SEED=%" PRIu64 "\n", headrace::emulator::adversary().seed());
  return RUN_ALL_TESTS();
}
