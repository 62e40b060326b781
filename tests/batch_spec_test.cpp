// SPDX-License-Identifier: Apache-2.0
#include "batch_spec.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "headrace/error.h"

namespace headrace::app {
namespace {

using Specs = std::vector<RequestSpec>;

TEST(BatchSpec, ReadsTheDocumentedForms) {
  EXPECT_EQ(parse_batch_spec("2048"), (Specs{{2048, 0}}));
  EXPECT_EQ(parse_batch_spec("8x2048"), Specs(8, {2048, 0}));
  EXPECT_EQ(parse_batch_spec("64x1+32k"), Specs(64, {1, 32768}));
  EXPECT_EQ(parse_batch_spec("2k,4k+2k"), (Specs{{2048, 0}, {4096, 2048}}));
  EXPECT_EQ(parse_batch_spec("2048,1x3000+1096,2x1+8k"), (Specs{{2048, 0}, {3000, 1096}, {1, 8192}, {1, 8192}}));
  EXPECT_EQ(parse_batch_spec("1kx1").size(), 1024U);
  EXPECT_EQ(parse_batch_spec("4K,1m,2x1+1M"), (Specs{{4096, 0}, {1 << 20, 0}, {1, 1 << 20}, {1, 1 << 20}}));
}

TEST(BatchSpec, TakesRequestsWithoutNewTokens) { EXPECT_EQ(parse_batch_spec("0,0+7"), (Specs{{0, 0}, {0, 7}})); }

TEST(BatchSpec, RefusesWhatIsMalformed) {
  for (const char* text :
       {"",         ",",    "1,",   ",1",    "x",     "x1",     "2x",  "0x1",  "-1",
        "1+-1",     "+1",   "1+",   "1++2",  "1x2x3", "k",      "1kk", "1.5k", "1mk",
        " 1",       "1 ",   "1, 2", "0x10+", "1e3",   "2048+k", "one", "1x+3", "99999999999999999999",
        "3000000k", "3000m"}) {
    SCOPED_TRACE(text);
    try {
      (void)parse_batch_spec(text);
      FAIL() << "was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.argument().substr(0, 7), "--batch");
    }
  }
}

TEST(BatchSpec, NamesTheItem) {
  try {
    (void)parse_batch_spec("1,2,bad,4");
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.argument(), "--batch item 3");
    EXPECT_EQ(error.actual(), "\"bad\"");
  }
}

TEST(BatchSpec, KeepsPositionsAndTokenNumbersWithin32Bits) {
  EXPECT_EQ(parse_batch_spec("2147483647").front().query_len, 2147483647);
  EXPECT_EQ(parse_batch_spec("2147483646+1").front().seq_len(), 2147483647);
  EXPECT_THROW((void)parse_batch_spec("2147483648"), Error);
  EXPECT_THROW((void)parse_batch_spec("2147483647+1"), Error);
  EXPECT_THROW((void)parse_batch_spec("2x1048576k"), Error);
  EXPECT_NO_THROW((void)parse_batch_spec("2x1048575k"));
}

TEST(BatchSpec, BoundsTheNumberOfRequests) {
  EXPECT_EQ(parse_batch_spec("65536x1").size(), 65536U);
  EXPECT_THROW((void)parse_batch_spec("65537x1"), Error);
  EXPECT_THROW((void)parse_batch_spec("65536x1,1"), Error);
  EXPECT_THROW((void)parse_batch_spec("2147483647x0"), Error);
}

/// Writes requests one way or another; reading must give them back.
TEST(BatchSpec, ReadsBackWhatIsWritten) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  const auto length = [&] { return below(2) == 0 ? below(5000) : 1024 * below(40); };
  const auto written = [&](std::int64_t n) {
    return n % 1024 == 0 && below(2) == 0 ? std::to_string(n / 1024) + "k" : std::to_string(n);
  };
  for (int round = 0; round < 200; ++round) {
    Specs expected;
    std::string text;
    for (int item = below(6); item >= 0; --item) {
      const RequestSpec request{length(), below(2) == 0 ? length() : 0};
      const int count = 1 + below(5);
      expected.insert(expected.end(), static_cast<std::size_t>(count), request);
      text += text.empty() ? "" : ",";
      text += count > 1 || below(2) == 0 ? std::to_string(count) + "x" : "";
      text += written(request.query_len);
      text += request.context_len > 0 || below(2) == 0 ? std::string("+").append(written(request.context_len)) : "";
    }
    EXPECT_EQ(parse_batch_spec(text), expected) << text;
  }
}

TEST(BatchSpec, LengthsOfABatch) {
  const Specs batch = parse_batch_spec("5,2x3+4");
  const BatchLengths lengths(batch);
  EXPECT_EQ(lengths.query_len, (std::vector<std::int32_t>{5, 3, 3}));
  EXPECT_EQ(lengths.seq_len, (std::vector<std::int32_t>{5, 7, 7}));
  EXPECT_TRUE(lengths.view().exact);
  EXPECT_EQ(query_tokens(batch), 11);
  EXPECT_EQ(batch[1].to_string(), "3+4");
}

}  // namespace
}  // namespace headrace::app
