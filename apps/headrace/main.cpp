// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>

#include "commands.h"
#include "headrace/error.h"
#include "options.h"
#include "output.h"
#include "stated_error.h"

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
  app::note(error.what());
  if (json) {
    app::print_json(app::to_json(error));
  }
  return status;
}

app::ExitStatus run_and_report(int argc, char** argv) {
  const bool json = app::asks_for_json(argc, argv);
  try {
    return run(app::parse_command_line(argc, argv));
  } catch (const app::CannotRunError& error) {
    return report(error, json, app::kCheckFailed);
  } catch (const Error& error) {
    return report(error, json, app::kMisuse);
  } catch (const std::bad_alloc&) {
    return report(Error("memory", "enough for what was asked", "an allocation that failed"), json, app::kMisuse);
  } catch (const std::exception& error) {
    if (std::ferror(stdout) != 0) {  // what fmt::print throws; main() tells
      return app::kMisuse;
    }
    return report(Error("headrace", "no internal failure", error.what()), json, app::kMisuse);
  }
}

/// A file that is opened while a standard stream is closed would take its number, and the stream's text. Closed streams
/// get a device that cannot be written to, so that writes to them still fail.
void occupy_closed_streams() {
  int descriptor = 0;
  do {
    descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
  } while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor > STDERR_FILENO) {
    close(descriptor);
  }
}

}  // namespace

int main(int argc, char** argv) {
  occupy_closed_streams();
  const app::ExitStatus status = run_and_report(argc, argv);
  // fflush first: what a full device refuses is not known before.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    app::note("standard output: cannot be written");
    return app::kMisuse;
  }
  return status;
}
