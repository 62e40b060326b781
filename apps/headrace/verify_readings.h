// SPDX-License-Identifier: Apache-2.0
#pragma once

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
};

/// Runs `work` under each reading. One that is refused is one that does not pass.
/// @throws Error the first refusal, where every reading is refused
[[nodiscard]] std::vector<ReadingResult> try_readings(const std::vector<Reading>& readings,
                                                      const std::function<std::vector<LayerResult>(Reading)>& work);

/// The one to report: the first that passes; else the first that was not refused.
[[nodiscard]] const ReadingResult& reading_to_report(const std::vector<ReadingResult>& results);

}  // namespace headrace::app
