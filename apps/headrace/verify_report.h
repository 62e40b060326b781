// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "options.h"
#include "output.h"
#include "verify_readings.h"

namespace headrace::app {

/// What verify found out.
struct VerifyReport {
  std::string model;
  std::filesystem::path recording;
  std::optional<Reading> recorded_reading;  ///< that the recording names
  std::vector<ReadingResult> readings;      ///< that were tried
  ModelConfig config;                       ///< as reported(): in that reading

  [[nodiscard]] const ReadingResult& reported() const { return reading_to_report(readings); }
  /// More than one reading passes: nothing that was compared differs between them.
  [[nodiscard]] bool undecided() const { return readings_that_pass(readings) > 1; }
};

/// As a document, and as text of at most 80 columns but for the names of files.
[[nodiscard]] Json verify_json(const VerifyReport& report, const Options& options);
[[nodiscard]] std::string verify_text(const VerifyReport& report, const Options& options);

}  // namespace headrace::app
