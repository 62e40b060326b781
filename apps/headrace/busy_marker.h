// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace headrace::app {

// A machine that is too busy to be measured would take as long again at the next call, for as little. An empty file
// beside where its profile would be kept remembers it for a day.

/// The marker of a profile's file: "profile.json.busy" beside "profile.json". Where there is no place to keep a
/// profile, and its path is empty, nothing is remembered.
[[nodiscard]] std::filesystem::path busy_marker(const std::filesystem::path& profile);

/// Leaves the marker. Where it cannot be written, the next call measures.
void remember_busy(const std::filesystem::path& profile);

/// Whether there is a marker that was left within the last 24 hours.
[[nodiscard]] bool was_busy(const std::filesystem::path& profile);

}  // namespace headrace::app
