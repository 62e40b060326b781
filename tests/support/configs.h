// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "headrace/model.h"

namespace headrace::test {

/// Every model_type that Headrace reads, but for glm5_next_text, which is glm5_next's without a text_config.
[[nodiscard]] const std::vector<std::string>& model_types();

/// One small configuration an architecture, of 8 layers and 4 heads; tests change fields of it.
[[nodiscard]] nlohmann::json config_of(const std::string& model_type);

/// The object that holds the language model's fields, and how errors call one of them.
[[nodiscard]] nlohmann::json& text_of(nlohmann::json& config);
[[nodiscard]] std::string path_of(const nlohmann::json& config, const std::string& field);

[[nodiscard]] ModelConfig parse(const nlohmann::json& config, Reading reading = Reading::engines);

/// The note on a field, by its path; nothing where there is none.
[[nodiscard]] std::optional<ConfigNote> note_on(const ModelConfig& config, const std::string& field);

/// Succeeds when parsing throws an Error whose message contains `message`.
[[nodiscard]] ::testing::AssertionResult refuses(const nlohmann::json& config, const std::string& message,
                                                 Reading reading = Reading::engines);

/// A letter a layer: S where it shares a selection, else F.
[[nodiscard]] std::string letters(const std::vector<bool>& shares);

}  // namespace headrace::test
