// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>

namespace headrace::app {

/// How --help looks: options in one column, what they mean in another that is cut to fit the width.
class HelpFormat : public CLI::Formatter {
 public:
  explicit HelpFormat(std::size_t width) : width_(width) {}

  [[nodiscard]] std::string make_usage(const CLI::App* app, std::string name) const override;
  [[nodiscard]] std::string make_description(const CLI::App* app) const override;
  [[nodiscard]] std::string make_option(const CLI::Option* option, bool is_positional) const override;
  [[nodiscard]] std::string make_subcommand(const CLI::App* app) const override;

 private:
  [[nodiscard]] std::string entry(const std::string& name, const std::string& meaning) const;

  std::size_t width_;
};

}  // namespace headrace::app
