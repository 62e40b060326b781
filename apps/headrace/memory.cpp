// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "headrace/error.h"
#include "numbers.h"

namespace headrace::app {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// The limit of the control group (cgroup v2), kMost where there is none.
std::int64_t control_group_limit() {
  std::ifstream file("/sys/fs/cgroup/memory.max");
  std::int64_t limit = 0;
  return file >> limit ? limit : kMost;
}

}  // namespace

std::int64_t available_memory() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name;
  std::int64_t kibibytes = 0;
  std::string unit;
  while (meminfo >> name >> kibibytes && std::getline(meminfo, unit)) {
    if (name == "MemAvailable:") {
      return std::min(kibibytes * 1024, control_group_limit());
    }
  }
  return control_group_limit();
}

std::int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

void MemoryEstimate::add(std::int64_t count, std::int64_t bytes_each) noexcept {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(count, bytes_each, &product) || __builtin_add_overflow(bytes_, product, &bytes_)) {
    bytes_ = kMost;
  }
}

void MemoryEstimate::require(std::string_view argument) const {
  const std::int64_t available = available_memory();
  if (bytes_ > available) {
    throw Error(std::string(argument), fmt::format("a step that fits the {} available", format_bytes(available)),
                fmt::format("an estimated {}", format_bytes(bytes_)));
  }
}

}  // namespace headrace::app
