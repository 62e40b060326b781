// SPDX-License-Identifier: Apache-2.0
#include "usage_error.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

#include "stated_error.h"
#include "suggestion.h"

namespace headrace::app {
namespace {

/// The command that a command line names; nullptr where it names none.
const CLI::App* named_command(const CLI::App& app) {
  const std::vector<const CLI::App*> commands = app.get_subcommands(nullptr);
  const auto named = std::find_if(commands.begin(), commands.end(), [](const CLI::App* one) { return one->parsed(); });
  return named == commands.end() ? nullptr : *named;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back(fmt::format("--{}", name));
    }
  }
  return names;
}

/// The other commands that take an option, for a message: "prefill and verify take it".
std::string takers_of(const std::string& option, const CLI::App& app) {
  std::vector<std::string> takers;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    const std::vector<std::string> names = option_names(*command);
    if (std::find(names.begin(), names.end(), option) != names.end()) {
      takers.push_back(command->get_name());
    }
  }
  if (takers.empty()) {
    return "";
  }
  if (takers.size() == 1) {
    return fmt::format("{} takes it", takers.front());
  }
  const std::string last = takers.back();
  takers.pop_back();
  return fmt::format("{} and {} take it", fmt::join(takers, ", "), last);
}

std::string help_of(const CLI::App* command) {
  return command == nullptr ? "see \"headrace --help\""
                            : fmt::format("see \"headrace {} --help\"", command->get_name());
}

/// What nothing in the command line takes, were it an option or not.
[[noreturn]] void refuse_unknown(const std::string& word, const CLI::App& app, const CLI::App* command) {
  const CLI::App& where = command == nullptr ? app : *command;
  const std::string argument = "command line";
  if (word.starts_with('-')) {
    const std::string name = word.substr(0, word.find('='));
    const std::string takers = takers_of(name, app);
    if (!takers.empty()) {
      throw StatedError(
          argument, "options of " + where.get_name(), fmt::format("\"{}\", and {}", name, takers),
          fmt::format("\"{}\" is no option of {}; {}; {}", name, where.get_name(), takers, help_of(command)));
    }
    const std::string meant = did_you_mean(name, option_names(where));
    throw StatedError(argument, "options of " + where.get_name(), fmt::format("\"{}\"{}", name, meant),
                      fmt::format("unknown option \"{}\"{}; {}", name, meant, help_of(command)));
  }
  if (command == nullptr) {
    const std::vector<std::string> names = command_names(app);
    const std::string commands = fmt::format("{}", fmt::join(names, ", "));
    const std::string meant = did_you_mean(word, names);
    throw StatedError(
        argument, fmt::format("one of {}, --version", commands), fmt::format("\"{}\"{}", word, meant),
        fmt::format("unknown command \"{}\"{}; the commands are {} ({})", word, meant, commands, help_of(nullptr)));
  }
  throw StatedError(argument, "options and their values", fmt::format("\"{}\"", word),
                    fmt::format("\"{}\" is neither an option nor the value of one; {}", word, help_of(command)));
}

}  // namespace

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    names.push_back(command->get_name());
  }
  return names;
}

void refuse_repeated(const CLI::App& app) {
  const CLI::App* const command = named_command(app);
  for (const CLI::Option* option : (command == nullptr ? app : *command).get_options()) {
    // Where the parser knows the option as well, it may stand before the command's name.
    const CLI::Option* const before = app.get_option_no_throw(option->get_name());
    const std::size_t times = option->count() + (before == nullptr || before == option ? 0 : before->count());
    if (times > 1) {
      throw StatedError(option->get_name(), "once", "twice", "given twice; " + help_of(command));
    }
  }
}

void throw_usage_error(const CLI::App& app, const CLI::ParseError& problem) {
  // What is wrong first, then what is missing: "--bacth 4k" is an error, not a missing --batch.
  refuse_repeated(app);
  const CLI::App* const command = named_command(app);
  const std::vector<std::string> unknown = command == nullptr ? app.remaining() : command->remaining();
  if (!unknown.empty()) {
    refuse_unknown(unknown.front(), app, command);
  }
  std::string what = problem.what();
  if (problem.get_name() == "ArgumentMismatch") {
    const std::string option = what.substr(0, what.find(':'));
    throw StatedError(option, "a value", "none", fmt::format("takes a value, and none follows; {}", help_of(command)));
  }
  throw StatedError("command line", "options as " + help_of(command).substr(4) + " tells them", what,
                    fmt::format("{}; {}", what, help_of(command)));
}

}  // namespace headrace::app
