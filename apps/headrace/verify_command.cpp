// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "commands.h"
#include "headrace/error.h"
#include "output.h"
#include "verify.h"
#include "verify_readings.h"
#include "verify_report.h"

namespace headrace::app {

ExitStatus run_verify(const Options& options) {
  const ModelSource model = find_model(options.model, 1, options.reading);
  if (!model.folder) {
    throw Error("--model", "a checkpoint folder: config.json, and model.safetensors or the shards of its index",
                model.is_preset ? fmt::format("the preset \"{}\", which has no weights", model.name)
                                : fmt::format("\"{}\", which has no weights", model.name));
  }
  VerifyReport report;
  report.model = model.name;
  report.recording = options.recording.empty() ? *model.folder / "recording.safetensors" : options.recording;
  const std::vector<RecordedLayer> recording = load_recording(report.recording);
  report.recorded_reading = recorded_reading(report.recording);
  report.readings = try_readings(
      readings_to_try(options, report.recorded_reading, model.config.readings_differ), [&](Reading reading) {
        return verify(find_model(options.model, 1, reading), recording, report.recording, options);
      });
  report.config = find_model(options.model, 1, report.reported().reading).config;
  tell_notes(report.config);
  if (options.json) {
    print_json(verify_json(report, options));
  } else {
    fmt::print("{}", verify_text(report, options));
  }
  return report.reported().pass() ? kAllWell : kCheckFailed;
}

}  // namespace headrace::app
