// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "headrace/error.h"
#include "memory.h"
#include "numbers.h"
#include "output.h"
#include "table.h"

namespace headrace::app {
namespace {

TEST(Numbers, Integers) {
  EXPECT_EQ(parse_integer("n", "0", 0, 9), 0);
  EXPECT_EQ(parse_integer("n", "9", 0, 9), 9);
  for (const char* text : {"", "10", "-1", "1x", " 1", "0x1", "1.0", "99999999999999999999"}) {
    EXPECT_THROW((void)parse_integer("n", text, 0, 9), Error) << text;
  }
}

TEST(Numbers, Bytes) {
  EXPECT_EQ(parse_bytes("n", "0"), 0);
  EXPECT_EQ(parse_bytes("n", "123"), 123);
  EXPECT_EQ(parse_bytes("n", "7B"), 7);
  EXPECT_EQ(parse_bytes("n", "3KiB"), 3 * 1024);
  EXPECT_EQ(parse_bytes("n", "64MiB"), std::int64_t{64} << 20);
  EXPECT_EQ(parse_bytes("n", "2GiB"), std::int64_t{2} << 30);
  EXPECT_EQ(parse_bytes("n", "1TiB"), std::int64_t{1} << 40);
  for (const char* text :
       {"", "MiB", "64MB", "64M", "-1", "-1KiB", "1.5GiB", "64 MiB", "8388608TiB", "9223372036854775808"}) {
    EXPECT_THROW((void)parse_bytes("n", text), Error) << text;
  }
}

TEST(Numbers, ForPeople) {
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(std::int64_t{64} << 20), "64.0 MiB");
  EXPECT_EQ(format_ms(0.5), "0.500 ms");
  EXPECT_EQ(format_ms(12.34), "12.3 ms");
  EXPECT_EQ(format_ms(4560.0), "4.56 s");
  EXPECT_EQ(counted(1, "row"), "1 row");
  EXPECT_EQ(counted(0, "row"), "0 rows");
}

TEST(TableText, AlignsColumnsAndTrimsLines) {
  Table table({{"name"}, {"n", Table::Align::right}, {"note"}});
  table.add({"a", "1", "short"});
  table.add({"longer", "1234"});
  EXPECT_EQ(table.to_string(),
            "name       n  note\n"
            "a          1  short\n"
            "longer  1234\n");
  EXPECT_THROW(table.add({"1", "2", "3", "4"}), std::logic_error);
}

TEST(TableText, WrapsAtBlanks) {
  EXPECT_EQ(wrap("a bc def", 8), (std::vector<std::string>{"a bc def"}));
  EXPECT_EQ(wrap("a bc def", 7), (std::vector<std::string>{"a bc", "def"}));
  EXPECT_EQ(wrap("a bc def", 4), (std::vector<std::string>{"a bc", "def"}));
  EXPECT_EQ(wrap("longer ab", 3), (std::vector<std::string>{"longer", "ab"}));
  EXPECT_EQ(wrap("longer", 3), (std::vector<std::string>{"longer"}));
  EXPECT_EQ(wrap("", 3), (std::vector<std::string>{""}));
}

TEST(JsonOutput, NumbersAreFiniteOrNull) {
  EXPECT_EQ(number(1.5).dump(), "1.5");
  EXPECT_EQ(number(std::numeric_limits<double>::infinity()).dump(), "null");
  EXPECT_EQ(number(std::numeric_limits<double>::quiet_NaN()).dump(), "null");
}

TEST(JsonOutput, ErrorsHaveTheirSchema) {
  EXPECT_EQ(to_json(Error("x", "one", "two")).dump(),
            R"({"schema":1,"error":{"argument":"x","expected":"one","actual":"two"}})");
}

TEST(MemoryEstimates, AddUpAndNeverWrapAround) {
  MemoryEstimate estimate;
  estimate.add(3, 5);
  estimate.add(2, 1);
  EXPECT_EQ(estimate.bytes(), 17);
  EXPECT_NO_THROW(estimate.require("it"));
  estimate.add(std::int64_t{1} << 40, std::int64_t{1} << 40);
  EXPECT_EQ(estimate.bytes(), std::numeric_limits<std::int64_t>::max());
  estimate.add(1, 1);
  EXPECT_EQ(estimate.bytes(), std::numeric_limits<std::int64_t>::max());
  EXPECT_THROW(estimate.require("it"), Error);
}

}  // namespace
}  // namespace headrace::app
