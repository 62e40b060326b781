// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "headrace/error.h"
#include "memory.h"
#include "numbers.h"
#include "output.h"
#include "suggestion.h"
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
  for (const char* text : {"", "MiB", "-1", "-1KiB", "1.5GiB", "64 MiB", "8388608TiB", "9223372036854775808",
                           "9223373TB", "1X", "1KBB", "1iB", "1PiB", "1Ki", "1MM"}) {
    EXPECT_THROW((void)parse_bytes("n", text), Error) << text;
  }
}

TEST(Numbers, BytesAsGnusToolsSpellThem) {
  for (const char* text : {"64M", "64m", "64MiB", "64mib", "64MIB"}) {
    EXPECT_EQ(parse_bytes("n", text), std::int64_t{64} << 20) << text;
  }
  EXPECT_EQ(parse_bytes("n", "64MB"), 64'000'000);
  EXPECT_EQ(parse_bytes("n", "3kb"), 3000);
  EXPECT_EQ(parse_bytes("n", "1GB"), 1'000'000'000);
  EXPECT_EQ(parse_bytes("n", "2TB"), 2'000'000'000'000);
  EXPECT_EQ(parse_bytes("n", "3K"), 3072);
  EXPECT_EQ(parse_bytes("n", "1g"), std::int64_t{1} << 30);
}

TEST(Numbers, CountsWithTheirUnits) {
  EXPECT_EQ(read_count("7", 100), 7);
  EXPECT_EQ(read_count("4k", 5000), 4096);
  EXPECT_EQ(read_count("4K", 5000), 4096);
  EXPECT_EQ(read_count("1m", 1 << 20), 1 << 20);
  EXPECT_EQ(read_count("2M", std::int64_t{1} << 30), 2 << 20);
  EXPECT_EQ(read_count("0", 1), 0);
  for (const char* text : {"", "k", "m", "-1", "-1k", "1.5k", "1kk", "1km", "1g", " 1", "1 k", "101", "1m"}) {
    EXPECT_EQ(read_count(text, 100), std::nullopt) << text;
  }
  EXPECT_EQ(read_count("1m", (1 << 20) - 1), std::nullopt);
}

TEST(Numbers, ListsAreShort) {
  EXPECT_EQ(list_numbers({}), "none");
  EXPECT_EQ(list_numbers({7}), "7");
  EXPECT_EQ(list_numbers({3, 7}), "3 and 7");
  EXPECT_EQ(list_numbers({0, 1, 2, 3}), "0 to 3");
  EXPECT_EQ(list_numbers({3, 7, 11, 15}), "3 to 15 in steps of 4");
  EXPECT_EQ(list_numbers({0, 1, 5, 6, 7, 9}), "0, 1, 5 to 7 and 9");
  EXPECT_EQ(list_numbers({1, 2, 3, 7, 11, 15}), "1 to 3 and 7 to 15 in steps of 4");
}

TEST(Suggestions, AreNearNames) {
  const std::vector<std::string> commands{"models", "route", "prefill", "verify", "validate", "bench", "doctor"};
  const std::pair<const char*, const char*> commands_meant[] = {
      {"rout", "route"},     {"ruote", "route"},    {"model", "models"},    {"MODELS", "models"}, {"verfy", "verify"},
      {"valid", "validate"}, {"prefil", "prefill"}, {"benchmark", "bench"}, {"docter", "doctor"}, {"routes", "route"}};
  for (const auto& [typed, meant] : commands_meant) {
    EXPECT_EQ(nearest_name(typed, commands), meant) << typed;
  }
  for (const char* typed : {"", "x", "bogus", "help", "serve", "attention", "be"}) {
    EXPECT_EQ(nearest_name(typed, commands), "") << typed;
  }
  const std::vector<std::string> presets{"deepseek-v3", "deepseek-v3.2", "glm-4.7-flash",
                                         "glm-5",       "glm-5.2",       "glm-5.3-flash"};
  EXPECT_EQ(nearest_name("glm-5.3", presets), "glm-5.3-flash");  // though glm-5.2 is a letter away
  EXPECT_EQ(nearest_name("GLM-5", presets), "glm-5");
  EXPECT_EQ(nearest_name("glm5", presets), "glm-5");
  EXPECT_EQ(nearest_name("deepseek-v32", presets), "deepseek-v3.2");
  EXPECT_EQ(nearest_name("deepseek_v32", presets), "deepseek-v3.2");
  EXPECT_EQ(nearest_name("llama", presets), "");
  EXPECT_EQ(nearest_name("---", presets), "");
  EXPECT_EQ(nearest_name("--bacth", {"--model", "--batch"}), "--batch");
  EXPECT_EQ(nearest_name("-batch", {"--model", "--batch"}), "--batch");
  EXPECT_EQ(nearest_name(std::string(100'000, 'a'), presets), "");
  EXPECT_EQ(did_you_mean("glm5", presets), " (did you mean \"glm-5\"?)");
  EXPECT_EQ(did_you_mean("llama", presets), "");
}

TEST(Numbers, ForPeople) {
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(std::int64_t{64} << 20), "64.0 MiB");
  EXPECT_EQ(format_ms(0.5), "0.500 ms");
  EXPECT_EQ(format_ms(12.34), "12.3 ms");
  EXPECT_EQ(format_ms(4560.0), "4.56 s");
  EXPECT_EQ(format_digits(0.0371), "0.037");
  EXPECT_EQ(format_digits(12.34), "12.3");
  EXPECT_EQ(format_digits(4560.4), "4560");
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

TEST(TableText, ColumnsThatDoNotFitStandBelow) {
  Table table({{"name"}, {"one\ntwo", Table::Align::right}, {"third"}, {"last"}});
  table.add({"a", "1", "xxxx", "y"});
  table.add({"bb", "22"});
  EXPECT_EQ(table.to_string(17),
            "      one\n"
            "name  two  third\n"
            "a       1  xxxx\n"
            "bb     22\n"
            "\n"
            "name  last\n"
            "a     y\n"
            "bb\n");
  EXPECT_EQ(table.to_string(22).find("\n\n"), std::string::npos);
  EXPECT_EQ(table.to_string(21).find("\n\n"), table.to_string(16).find("\n\n"));
  EXPECT_NE(table.to_string(1).find("name  last"), std::string::npos);  // a column at a time
}

TEST(TableText, ATextColumnTakesWhatIsLeft) {
  Table table({{"n", Table::Align::right}, {"why", Table::Align::text}});
  table.add({"1", "a reason that is longer than a line can be here"});
  table.add({"2\n3", "short"});
  EXPECT_EQ(table.to_string(33),
            "n  why\n"
            "1  a reason that is longer than a\n"
            "   line can be here\n"
            "2  short\n"
            "3\n");
  EXPECT_EQ(table.to_string(80).find("a reason that is longer than a line can be here\n"), 7U + 3U);
}

TEST(TableText, GrowsByRowsOfStatedWidths) {
  const Table table({{"case", Table::Align::left, 6}, {"of\nall", Table::Align::right, 5}});
  EXPECT_EQ(table.titles(),
            "           of\n"
            "case      all\n");
  EXPECT_EQ(table.line({"a", "0.5"}), "a         0.5\n");
  EXPECT_EQ(table.line({"longer"}), "longer\n");
}

TEST(TableText, WrapsWithAnIndent) {
  EXPECT_EQ(wrapped("a bc def", 80), "a bc def\n");
  EXPECT_EQ(wrapped("one two three four", 12, 2), "one two\n  three four\n");
  EXPECT_EQ(wrapped("", 80, 2), "\n");
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
