// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

#include "model_source.h"
#include "options.h"
#include "output.h"
#include "verify_readings.h"

namespace headrace::app {

/// What verify says, as a document and as text of at most 80 columns (longer names and paths apart).
[[nodiscard]] Json verify_json(const std::string& model, const std::vector<ReadingResult>& readings,
                               const Options& options);
[[nodiscard]] std::string verify_text(const std::string& model, const std::filesystem::path& recording,
                                      const std::vector<ReadingResult>& readings, const Options& options);

}  // namespace headrace::app
