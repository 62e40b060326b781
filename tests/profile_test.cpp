// SPDX-License-Identifier: Apache-2.0
#include "headrace/profile.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "headrace/error.h"
#include "support/errors.h"
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
  for (const char* text : {"", "[]", "{\"schema\": 2}", "{\"schema\": 99}", "not json", "{\"schema\": \"1\"}"}) {
    write(text);
    EXPECT_THROW((void)load_profile(file()), Error) << text;
  }
}

TEST_F(ProfileFile, RefusesFieldsThatCannotBe) {
  save_profile(Profile::nominal_cpu(DType::bfloat16), file());
  const std::string good = test::read_file(file());
  const std::pair<const char*, const char*> changes[] = {{"80.0", "-1.0"},
                                                         {"80.0", "0.0"},
                                                         {"80.0", "1e-6"},
                                                         {"80.0", "true"},
                                                         {"\"bfloat16\"", "\"float16\""},
                                                         {"\"bfloat16\"", "16"},
                                                         {"\"threads\": 1", "\"threads\": 0"},
                                                         {"\"threads\": 1", "\"threads\": 1.5"},
                                                         {"\"threads\": 1", "\"threads\": 4294967297"},
                                                         {"\"schema\": 2", "\"schema\": 1"}};
  for (const auto& [from, to] : changes) {
    ASSERT_NE(good.find(from), std::string::npos) << from;
    write(std::string(good).replace(good.find(from), std::string(from).size(), to));
    EXPECT_THROW((void)load_profile(file()), Error) << to;
  }
  write(good);
  EXPECT_NO_THROW((void)load_profile(file()));
}

TEST_F(ProfileFile, NamesTheFieldThatIsMissing) {
  save_profile(Profile::nominal_cpu(DType::bfloat16), file());
  const std::string good = test::read_file(file());
  for (const char* field : {"schema", "name", "compute", "threads", "product_gflops", "bandwidth_gbytes"}) {
    std::string quoted = "\"";
    quoted += field;
    quoted += '"';
    write(std::string(good).replace(good.find(quoted), quoted.size(), "\"another\""));
    const std::string message = file().string() + ": " + field + ": expected a value, got nothing";
    EXPECT_TRUE(test::throws_error([&] { (void)load_profile(file()); }, message)) << field;
  }
}

TEST_F(ProfileFile, TakesBothSpellingsOfADtype) {
  save_profile(Profile::nominal_cpu(DType::bfloat16), file());
  const std::string good = test::read_file(file());
  write(std::string(good).replace(good.find("bfloat16"), 8, "bf16"));
  EXPECT_EQ(load_profile(file()).compute, DType::bfloat16);
}

TEST_F(ProfileFile, RefusesWhatIsNoRegularFile) {
  EXPECT_THROW((void)load_profile(folder_.path()), Error);
  const std::filesystem::path pipe = folder_.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW((void)load_profile(pipe), Error);
}

TEST_F(ProfileFile, CannotBeWrittenWhereAFileIsInTheWay) {
  std::ofstream(folder_.path() / "deep") << "a file";
  EXPECT_THROW(save_profile(Profile::nominal_cpu(DType::bfloat16), file()), Error);
}

TEST(MeasuredProfile, RefusesThreadsThatNoMachineHas) {
  for (const int threads : {-1, kMaxThreads + 1, 1'000'000}) {
    EXPECT_THROW((void)measure_profile(DType::float32, threads), Error) << threads;
  }
}

TEST(MeasuredProfile, HasRatesOfThisWorld) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "rates under a sanitizer mean nothing, and measuring them takes minutes";
#endif
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    std::vector<double> shares;
    const Profile profile = measure_profile(compute, 1, [&](double share) { shares.push_back(share); });
    EXPECT_GE(shares.size(), 20U);
    EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
    EXPECT_GT(shares.front(), 0.0);
    EXPECT_GE(shares.back(), 0.9);
    EXPECT_LE(shares.back(), 1.0);
    EXPECT_NO_THROW(profile.validate());
    EXPECT_EQ(profile.compute, compute);
    EXPECT_EQ(profile.threads, 1);
    EXPECT_TRUE(profile.name == machine_name() || profile.name == "nominal") << profile.name;
    EXPECT_LT(profile.product_gflops, 1e5);
    for (const double rate : {profile.mha_gflops, profile.mqa_gflops}) {
      EXPECT_LE(rate, 4.0 * profile.product_gflops);
      EXPECT_GE(rate, profile.product_gflops / 20.0);
    }
  }
}

}  // namespace
}  // namespace headrace
