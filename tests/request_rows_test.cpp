// SPDX-License-Identifier: Apache-2.0
// How kernels read lengths: against the definition, token by token and in 64 bits, for lengths at every end of int32.
#include "cache/request_rows.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace headrace::cache {
namespace {

constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();

/// The position of a token, where it is a row of the request.
std::optional<std::int64_t> position_of(std::int64_t start, std::int64_t stop, std::int64_t seq_len,
                                        std::int64_t tokens, std::int64_t token) {
  const std::int64_t position = seq_len - (stop - token);
  const bool row = token >= 0 && token < tokens && token >= start && token < stop && position >= 0;
  return row ? std::optional(position) : std::nullopt;
}

std::vector<std::int32_t> lengths(std::int32_t near) {
  return {kLeast,   kLeast + 1, -near - 1, -near,         -1,          0,     1,
          near - 1, near,       near + 1,  2 * near,      kMost - 1,   kMost, kMost - near,
          near / 2, kLeast / 2, kMost / 2, -1 - near / 2, 3 * near + 7};
}

/// Tokens where a row may begin or end.
std::vector<std::int64_t> edges(std::int64_t start, std::int64_t stop, std::int64_t seq_len, std::int64_t tokens) {
  std::vector<std::int64_t> all;
  for (const std::int64_t edge : {std::int64_t{0}, start, stop, tokens, stop - seq_len, (start + stop) / 2}) {
    for (std::int64_t near = -2; near <= 2; ++near) {
      all.push_back(edge + near);
    }
  }
  return all;
}

TEST(RequestRows, AreTheTokensThatHaveAPlaceInTheTensors) {
  for (const std::int32_t tokens : {0, 1, 100, kMost}) {
    const std::int32_t near = tokens == kMost ? 100 : tokens;
    for (const std::int32_t start : lengths(near)) {
      for (const std::int32_t stop : lengths(near)) {
        for (const std::int32_t seq_len : lengths(near)) {
          const RequestRows rows = request_rows(start, stop, seq_len, tokens);
          ASSERT_GE(rows.begin, 0);
          ASSERT_GE(rows.end, rows.begin);
          ASSERT_LE(rows.end, request_keys(seq_len));
          for (const std::int64_t token : edges(start, stop, seq_len, tokens)) {
            const std::optional<std::int64_t> expected = position_of(start, stop, seq_len, tokens, token);
            const std::int64_t position = token - rows.to_token;
            const bool row = position >= rows.begin && position < rows.end;
            ASSERT_EQ(row, expected.has_value()) << "query_start {" << start << ", " << stop << "}, seq_len " << seq_len
                                                 << ", token " << token << " of " << tokens;
            ASSERT_TRUE(!row || position == *expected) << "token " << token << " at " << position;
          }
          ASSERT_TRUE(rows.count() == 0 || (rows.token() >= 0 && rows.token() < tokens));
        }
      }
    }
  }
}

TEST(RequestRows, OfARequestThatMakesSenseAreAllOfIts) {
  const RequestRows rows = request_rows(100, 164, 1000, 500);
  EXPECT_EQ(rows.begin, 936);
  EXPECT_EQ(rows.end, 1000);
  EXPECT_EQ(rows.token(), 100);
}

TEST(RequestRows, WithinPositionsKeepTheirTokens) {
  const RequestRows rows = request_rows(100, 164, 1000, 500);
  const RequestRows some = rows.within(940, 950);
  EXPECT_EQ(some.begin, 940);
  EXPECT_EQ(some.end, 950);
  EXPECT_EQ(some.token(), 104);
  EXPECT_EQ(rows.within(0, kMost).count(), 64);
  EXPECT_EQ(rows.within(0, 936).count(), 0);
  EXPECT_EQ(rows.within(1000, kMost).count(), 0);
  EXPECT_EQ(rows.within(kMost, kMost).count(), 0);
  EXPECT_EQ(rows.within(950, 940).count(), 0);
}

TEST(RequestRows, SlicesAreByNumber) {
  const RequestRows rows = request_rows(0, kMost, kMost, kMost);
  EXPECT_EQ(rows.slice(kMost - 1, 128).count(), 1);
  EXPECT_EQ(rows.slice(kMost - 1, 128).token(), kMost - 1);
  EXPECT_EQ(rows.slice(kMost, 128).count(), 0);
  EXPECT_EQ(rows.slice(5, kMost).count(), kMost - 5);
  const RequestRows few = request_rows(10, 14, 14, 20);
  EXPECT_EQ(few.slice(1, 2).begin, 11);
  EXPECT_EQ(few.slice(1, 2).end, 13);
  EXPECT_EQ(few.slice(1, 2).token(), 11);
  EXPECT_EQ(few.slice(3, 2).count(), 1);
  EXPECT_EQ(few.slice(4, 2).count(), 0);
  EXPECT_EQ(few.slice(kMost, kMost).count(), 0);
}

TEST(RequestRows, LengthsBeyondInt32AreItsGreatest) {
  EXPECT_EQ(as_length(0), 0);
  EXPECT_EQ(as_length(kMost), kMost);
  EXPECT_EQ(as_length(std::int64_t{1} << 40), kMost);
}

}  // namespace
}  // namespace headrace::cache
