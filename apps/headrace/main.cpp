// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <exception>
#include <new>

#include "commands.h"
#include "headrace/error.h"
#include "options.h"
#include "output.h"

namespace {

using headrace::Error;
namespace app = headrace::app;

app::ExitStatus run(const app::Options& options) {
  switch (options.command) {
    case app::Command::help:
      fmt::print("{}", options.help_text);
      return app::kAllWell;
    case app::Command::version:
      return app::run_version(options);
    case app::Command::models:
      return app::run_models(options);
    case app::Command::route:
      return app::run_route(options);
    case app::Command::prefill:
      return app::run_prefill(options);
    case app::Command::verify:
      return app::run_verify(options);
    case app::Command::bench:
      return app::run_bench(options);
    case app::Command::doctor:
      return app::run_doctor(options);
    case app::Command::validate:
      return app::run_validate(options);
  }
  return app::kMisuse;
}

app::ExitStatus report(const Error& error, bool json, app::ExitStatus status) {
  fmt::print(stderr, "headrace: {}\n", error.what());
  if (json) {
    app::print_json(app::to_json(error));
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  const bool json = app::asks_for_json(argc, argv);
  try {
    return run(app::parse_command_line(argc, argv));
  } catch (const app::ForcedPathError& error) {
    return report(error, json, app::kCheckFailed);
  } catch (const Error& error) {
    return report(error, json, app::kMisuse);
  } catch (const std::bad_alloc&) {
    return report(Error("memory", "enough for what was asked", "an allocation that failed"), json, app::kMisuse);
  } catch (const std::exception& error) {
    return report(Error("headrace", "no internal failure", error.what()), json, app::kMisuse);
  }
}
