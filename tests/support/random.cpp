// SPDX-License-Identifier: Apache-2.0
#include "support/random.h"

#include <cstdlib>
#include <random>

namespace headrace::test {

std::uint64_t fresh_seed() {
  if (const char* chosen = std::getenv("HEADRACE_TEST_SEED")) {
    return std::strtoull(chosen, nullptr, 10);
  }
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

}  // namespace headrace::test
