// SPDX-License-Identifier: Apache-2.0
#include "headrace/profile.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "headrace/error.h"
#include "support/files.h"

namespace headrace {
namespace {

class ProfileFile : public testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path file() const { return folder_.path() / "deep" / "profile.json"; }
  void write(const std::string& text) const {
    std::filesystem::create_directories(file().parent_path());
    std::ofstream(file()) << text;
  }

  test::TemporaryFolder folder_;
};

TEST_F(ProfileFile, ReadsBackWhatItWrote) {
  Profile profile = Profile::nominal_cpu(DType::float32);
  profile.name = "a \"quoted\" machine";
  profile.threads = 3;
  profile.mqa_gflops = 12.5;
  save_profile(profile, file());
  const Profile read = load_profile(file());
  EXPECT_EQ(read.name, profile.name);
  EXPECT_EQ(read.compute, DType::float32);
  EXPECT_EQ(read.threads, 3);
  EXPECT_EQ(read.mqa_gflops, 12.5);
  EXPECT_EQ(read.bandwidth_gbytes, profile.bandwidth_gbytes);
}

TEST_F(ProfileFile, RefusesWhatIsNoProfile) {
  EXPECT_THROW((void)load_profile(file()), Error);
  for (const char* text : {"", "[]", "{\"schema\": 1}", "{\"schema\": 99}", "not json", "{\"schema\": \"1\"}"}) {
    write(text);
    EXPECT_THROW((void)load_profile(file()), Error) << text;
  }
  save_profile(Profile::nominal_cpu(DType::bfloat16), file());
  std::ifstream stream(file());
  std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  text.replace(text.find("80.0"), 4, "-1.0");
  write(text);
  EXPECT_THROW((void)load_profile(file()), Error);
}

TEST_F(ProfileFile, CannotBeWrittenWhereAFileIsInTheWay) {
  std::ofstream(folder_.path() / "deep") << "a file";
  EXPECT_THROW(save_profile(Profile::nominal_cpu(DType::bfloat16), file()), Error);
}

TEST(MeasuredProfile, HasRatesOfThisWorld) {
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    const Profile profile = measure_profile(compute, 1);
    EXPECT_NO_THROW(profile.validate());
    EXPECT_EQ(profile.compute, compute);
    EXPECT_EQ(profile.threads, 1);
    EXPECT_LT(profile.product_gflops, 1e5);
    EXPECT_LT(profile.mha_gflops, 1e5);
  }
}

}  // namespace
}  // namespace headrace
