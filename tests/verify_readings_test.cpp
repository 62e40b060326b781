// SPDX-License-Identifier: Apache-2.0
#include "verify_readings.h"

#include <gtest/gtest.h>

#include "headrace/error.h"
#include "support/errors.h"

namespace headrace::app {
namespace {

using enum Reading;
using Readings = std::vector<Reading>;

std::vector<LayerResult> layers_that(bool pass) {
  LayerResult layer;
  PathResult path;
  path.oracle_rows = pass ? 1 : 0;
  layer.paths.push_back(path);
  return {layer};
}

TEST(ReadingsToTry, TheGivenOneThenTheRecordedOneThenBoth) {
  Options given;
  given.reading = transformers;
  given.reading_given = true;
  EXPECT_EQ(readings_to_try(given, engines, true), Readings{transformers});
  EXPECT_EQ(readings_to_try({}, transformers, true), Readings{transformers});
  EXPECT_EQ(readings_to_try({}, transformers, false), Readings{transformers});
  EXPECT_EQ(readings_to_try({}, std::nullopt, true), (Readings{engines, transformers}));
  EXPECT_EQ(readings_to_try({}, std::nullopt, false), Readings{engines});
}

TEST(TryReadings, TheFirstThatPassesIsReported) {
  for (const bool first : {false, true}) {
    for (const bool second : {false, true}) {
      const std::vector<ReadingResult> results = try_readings(
          {engines, transformers}, [&](Reading reading) { return layers_that(reading == engines ? first : second); });
      ASSERT_EQ(results.size(), 2U);
      EXPECT_EQ(results[0].pass(), first);
      EXPECT_EQ(results[1].pass(), second);
      const ReadingResult& reported = reading_to_report(results);
      EXPECT_EQ(reported.reading, second && !first ? transformers : engines);
      EXPECT_EQ(reported.pass(), first || second);
      EXPECT_EQ(readings_that_pass(results), (first ? 1 : 0) + (second ? 1 : 0));
    }
  }
}

TEST(TryReadings, ARefusalDoesNotCountWhereAnotherReadingPasses) {
  const auto refuses_engines = [](bool pass) {
    return try_readings({engines, transformers}, [&](Reading reading) {
      if (reading == engines) {
        throw Error("index_topk", "weights", "none");
      }
      return layers_that(pass);
    });
  };
  const std::vector<ReadingResult> results = refuses_engines(true);
  EXPECT_FALSE(results[0].pass());
  EXPECT_EQ(results[0].refusal_text, "index_topk: expected weights, got none");
  EXPECT_EQ(reading_to_report(results).reading, transformers);
  EXPECT_TRUE(reading_to_report(results).pass());
  // Where none passes the layer was not compared, which is not to fail.
  EXPECT_TRUE(test::throws_error([&] { (void)refuses_engines(false); }, "index_topk: expected weights, got none"));
}

TEST(TryReadings, WhereAllAreRefusedTheFirstRefusalIsTold) {
  const auto refuse = [](Reading reading) -> std::vector<LayerResult> {
    throw Error(std::string(name_of(reading)), "another", "this");
  };
  EXPECT_TRUE(test::throws_error([&] { (void)try_readings({engines, transformers}, refuse); }, "engines: expected"));
  EXPECT_TRUE(test::throws_error([&] { (void)try_readings({transformers}, refuse); }, "transformers: expected"));
}

}  // namespace
}  // namespace headrace::app
