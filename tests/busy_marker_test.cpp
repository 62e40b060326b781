// SPDX-License-Identifier: Apache-2.0
// A machine that was too busy to be measured is left alone for a day.
#include "busy_marker.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "headrace/dtype.h"
#include "headrace/profile.h"
#include "support/cli.h"
#include "support/files.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using test::Result;
using test::run_on_terminal;
using test::TemporaryFolder;

void make_older(const fs::path& profile, std::chrono::hours age) {
  fs::last_write_time(app::busy_marker(profile), fs::file_time_type::clock::now() - age);
}

TEST(BusyMarker, LastsADay) {
  const TemporaryFolder folder;
  const fs::path profile = folder.path() / "cache" / "profile.json";
  EXPECT_FALSE(app::was_busy(profile));
  app::remember_busy(profile);
  EXPECT_TRUE(app::was_busy(profile));
  make_older(profile, std::chrono::hours(23));
  EXPECT_TRUE(app::was_busy(profile));
  for (const int hours : {25, -25}) {
    make_older(profile, std::chrono::hours(hours));
    EXPECT_FALSE(app::was_busy(profile)) << hours;
  }
  app::remember_busy(profile);
  EXPECT_TRUE(app::was_busy(profile)) << "a second marker does not renew the first";
}

TEST(BusyMarker, SparesTheCommandLineAnotherMeasurement) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "headrace" / profile_path(DType::float32, 1).filename();
  app::remember_busy(file);
  const Result result =
      run_on_terminal("route --model glm-5 --batch 4k --threads 1 --dtype float32 --json", 80, folder.path());
  EXPECT_EQ(result.status, 0);
  EXPECT_NE(result.out.find("too busy to measure its rates"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find(app::busy_marker(file).string()), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("\"profile\": \"nominal\""), std::string::npos) << result.out;
  EXPECT_FALSE(fs::exists(file)) << "it was measured all the same";
}

}  // namespace
}  // namespace headrace
