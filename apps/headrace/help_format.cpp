// SPDX-License-Identifier: Apache-2.0
#include "help_format.h"

#include <fmt/core.h>

#include "table.h"

namespace headrace::app {
namespace {

constexpr std::size_t kMeanings = 27;  // the column they begin in, after the longest option with its type

std::string name_and_type(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return fmt::format("{}{}{}", option.get_name(false, true), type.empty() ? "" : " ", type);
}

}  // namespace

std::string HelpFormat::entry(const std::string& name, const std::string& meaning) const {
  const std::string left = fmt::format("  {:<{}}", name, kMeanings - 2);
  if (left.size() > kMeanings) {
    return left + "\n" + std::string(kMeanings, ' ') + wrapped(meaning, width_, kMeanings);
  }
  return left + wrapped(meaning, width_, kMeanings);
}

std::string HelpFormat::make_usage(const CLI::App* app, std::string name) const {
  std::string usage = fmt::format("Usage: {}", name);
  if (!app->get_subcommands([](const CLI::App*) { return true; }).empty()) {
    usage += " COMMAND";
  }
  for (const CLI::Option* option : app->get_options([](const CLI::Option* one) { return one->get_required(); })) {
    usage += fmt::format(" {}", name_and_type(*option));
  }
  return usage + " [OPTIONS]\n";
}

std::string HelpFormat::make_description(const CLI::App* app) const { return wrapped(app->get_description(), width_); }

std::string HelpFormat::make_option(const CLI::Option* option, bool /*is_positional*/) const {
  return entry(name_and_type(*option), option->get_description());
}

std::string HelpFormat::make_subcommand(const CLI::App* app) const {
  return entry(app->get_name(), app->get_description());
}

}  // namespace headrace::app
