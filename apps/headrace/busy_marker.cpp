// SPDX-License-Identifier: Apache-2.0
#include "busy_marker.h"

#include <chrono>
#include <fstream>
#include <system_error>

namespace headrace::app {
namespace {

constexpr std::chrono::hours kRemembered{24};

}  // namespace

std::filesystem::path busy_marker(const std::filesystem::path& profile) {
  std::filesystem::path marker = profile;
  marker += ".busy";
  return marker;
}

void remember_busy(const std::filesystem::path& profile) {
  if (profile.empty()) {
    return;
  }
  std::error_code ignored;
  std::filesystem::create_directories(profile.parent_path(), ignored);
  // Opening an empty file that is there does not change its time.
  std::filesystem::remove(busy_marker(profile), ignored);
  const std::ofstream made(busy_marker(profile));
}

bool was_busy(const std::filesystem::path& profile) {
  if (profile.empty()) {
    return false;
  }
  std::error_code missing;
  const auto left = std::filesystem::last_write_time(busy_marker(profile), missing);
  if (missing) {
    return false;
  }
  const auto age = std::filesystem::file_time_type::clock::now() - left;
  return age > -kRemembered && age < kRemembered;  // a clock that was set back does not make it last
}

}  // namespace headrace::app
