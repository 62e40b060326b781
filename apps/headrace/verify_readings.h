// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "headrace/model.h"
#include "options.h"
#include "verify.h"

namespace headrace::app {

/// The readings of a configuration under which a recording is compared: that of --reading; else the one that the
/// recording names; else both where they differ, that of engines first.
/// @param recorded  the one that the recording names
/// @param differ    whether the model's readings do
[[nodiscard]] std::vector<Reading> readings_to_try(const Options& options, std::optional<Reading> recorded,
                                                   bool differ);

/// What came of one reading.
struct ReadingResult {
  Reading reading = Reading::engines;
  std::vector<LayerResult> layers;
  std::exception_ptr refusal;  ///< of the model or the recording, under this reading; null where there was none
  std::string refusal_text;

  [[nodiscard]] bool pass() const noexcept { return refusal == nullptr && all_pass(layers); }
  /// Not even that: a layer fails, rather than that the forced path cannot run.
  [[nodiscard]] bool fails() const noexcept;
};

/// Runs `work` under each reading. A refusal does not count where another reading passes: then the model and the
/// recording are of that one, and lack what the first asks for.
/// @throws Error the first refusal, where no reading passes: a layer that could not be compared is not one that fails
[[nodiscard]] std::vector<ReadingResult> try_readings(const std::vector<Reading>& readings,
                                                      const std::function<std::vector<LayerResult>(Reading)>& work);

[[nodiscard]] std::int64_t readings_that_pass(const std::vector<ReadingResult>& results);

/// The one to report: the first that passes, else the first that does not fail, else the first.
[[nodiscard]] const ReadingResult& reading_to_report(const std::vector<ReadingResult>& results);

}  // namespace headrace::app
