// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/files.h"

namespace headrace::test {

using Json = nlohmann::json;

/// What a user sees of a run of the built program.
struct Result {
  int status = -1;
  std::string out;
  std::string err;

  [[nodiscard]] Json json() const { return Json::parse(out); }
};

/// Runs the built program. `route` and `prefill` run at assumed rates unless the arguments name a profile: measuring
/// takes a second, which only tests of it should wait for. What is measured in spite of it is kept in a folder of the
/// run's own.
[[nodiscard]] Result run(const std::string& arguments);

/// What is shown on a terminal of so many columns, both streams in one (`out`), where the measured rates are kept in
/// `cache`. Nothing is added to the arguments.
[[nodiscard]] Result run_on_terminal(const std::string& arguments, int columns, const std::filesystem::path& cache);

/// The lines of a text that are longer than `width`, in characters.
[[nodiscard]] std::vector<std::string> lines_beyond(const std::string& text, std::size_t width);

/// The built program.
[[nodiscard]] std::string binary();

/// The exit status alone, of a run whose streams the arguments redirect.
[[nodiscard]] int status_of(const std::string& arguments_and_redirections);

/// Checks an Error's exit status, its one line on stderr and, with --json, its document on stdout.
void expect_error(const std::string& arguments, int status);

/// The folder of a recorded model.
[[nodiscard]] std::string recording(const std::string& name);

[[nodiscard]] const std::vector<std::string>& recordings();

/// A folder with a recorded model's config.json and no weights.
void copy_config(const std::string& name, const std::filesystem::path& folder);

/// A recorded model whose configuration `change` has changed; weights and recording are linked.
template <class Change>
void copy_model(const std::string& name, const std::filesystem::path& folder, const Change& change) {
  const std::filesystem::path source = std::filesystem::absolute(recording(name));
  for (const char* file : {"model.safetensors", "recording.safetensors"}) {
    std::filesystem::create_symlink(source / file, folder / file);
  }
  Json config = Json::parse(read_file(source / "config.json"));
  change(config);
  write_file(folder / "config.json", config.dump());
}

}  // namespace headrace::test
