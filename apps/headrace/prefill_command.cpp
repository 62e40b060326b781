// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <new>
#include <string>
#include <utility>

#include "commands.h"
#include "device/parallel.h"
#include "memory.h"
#include "numbers.h"
#include "output.h"
#include "plan_text.h"
#include "prefill.h"
#include "prefill_memory.h"
#include "table.h"

namespace headrace::app {
namespace {

std::array<std::pair<const char*, double>, 6> stages_of(const StageTimes& times) {
  return {{{"plan", times.plan},
           {"project", times.project},
           {"append", times.append},
           {"select", times.select},
           {"attend", times.attend},
           {"output", times.output}}};
}

double tokens_per_second(const PrefillReport& report, const Options& options) {
  return 1000.0 * static_cast<double>(query_tokens(options.batch)) / report.stages.total();
}

std::string selection_text(const ModelSource& model, std::int64_t layer, const Options& options) {
  if (options.selection.kind == SelectionSource::Kind::generator) {
    return options.selection.text;
  }
  if (model.config.selection_rule(layer).kind() == SelectionRule::Kind::none) {
    return "none";
  }
  const std::int64_t source = model.config.selection_source(layer);
  return source == layer ? "indexer" : fmt::format("indexer of layer {}", source);
}

Json row_json(const RowError& row) {
  return {{"error", number(row.error)}, {"request", row.request}, {"position", row.position}};
}

Json check_json(const OracleCheck& check) {
  return {{"rows", check.rows()},
          {"worst_row", row_json(check.worst_row())},
          {"worst_lse", row_json(check.worst_lse())},
          {"row_tolerance", check.tolerance().row},
          {"lse_tolerance", check.tolerance().lse},
          {"pass", check.pass()}};
}

void print_report_json(const ModelSource& model, std::int64_t layer, const Options& options,
                       const PrefillReport& report) {
  Json document = new_document();
  document["device"] = device_text(options);
  document["threads"] = device::thread_count(options.threads);
  document["model"] = model.name;
  add_reading(document, model.config);
  document["layer"] = layer;
  document["tp"] = options.tp;
  document["weights"] = model.folder ? "checkpoint" : "random";
  document["seed"] = options.seed;
  document["dtype"] = name_of(report.attention.compute);
  document["kv_cache_dtype"] = name_of(report.attention.format);
  document["kv_cache_scale"] = options.format() == CacheFormat::fp8 ? Json(options.cache_scale) : Json(nullptr);
  document["geometry"] = to_json(report.attention.geometry);
  document["selection"] = selection_text(model, layer, options);
  document["selection_rule"] = report.attention.rule.to_string();
  document["steps"] = report.steps;
  document["tokens"] = query_tokens(options.batch);
  for (const auto& [name, ms] : stages_of(report.stages)) {
    document["stages_ms"][name] = number(ms);
  }
  document["total_ms"] = number(report.stages.total());
  document["context_ms"] = number(report.context_ms);
  document["tokens_per_second"] = number(tokens_per_second(report, options));
  for (const Path path : kPaths) {
    document["tokens_by_path"][std::string(name_of(path))] = report.tokens[static_cast<std::size_t>(path)];
  }
  document["workspace_bytes"] = report.workspace_bytes;
  document["peak_memory_bytes"] = peak_memory();
  document["first_step"] = requests_json(report.first_plan);
  document["last_step"] = requests_json(report.last_plan);
  document["check"] = report.check ? check_json(*report.check) : Json(nullptr);
  print_json(document);
}

/// What is run and how, for whoever waits for the times.
void print_start(const ModelSource& model, std::int64_t layer, const Options& options, const PrefillStart& start) {
  const std::size_t width = output_width();
  fmt::print("{}", describe(model, layer, start.attention, start.first_plan.device(), width));
  if (options.format() == CacheFormat::fp8) {
    fmt::print("{}\n", cache_scale_text(options));
  }
  const std::string sources = fmt::format(
      "weights: {}; selection: {}{}", model.folder ? "checkpoint" : fmt::format("random, seed {}", options.seed),
      selection_text(model, layer, options), options.tp > 1 ? "; the output is one rank's partial sum" : "");
  fmt::print("{}\n", wrapped(sources, width, 2));
  if (start.steps > 1) {
    fmt::print("step 1 of {}\n", start.steps);
  }
  fmt::print("{}\n", plan_table(start.first_plan, width));
  (void)std::fflush(stdout);  // a failure stays in the stream for the end of main()
}

void print_stages(const StageTimes& times) {
  Table table({{"stage"}, {"time", Table::Align::right}, {"share", Table::Align::right}});
  const double total = times.total();
  for (const auto& [name, ms] : stages_of(times)) {
    table.add({name, format_ms(ms), fmt::format("{:.1f} %", 100.0 * ms / total)});
  }
  table.add({"total", format_ms(total), "100.0 %"});
  fmt::print("{}\n", table.to_string());
}

void print_check(const OracleCheck& check) {
  if (check.rows() == 0) {
    fmt::print("check     pass: there are no new tokens, so no rows to compare\n");
    return;
  }
  const RowError& row = check.worst_row();
  const RowError& lse = check.worst_lse();
  fmt::print("check     {}: {} against the float64 oracle\n", check.pass() ? "pass" : "FAIL",
             counted(check.rows(), "row"));
  fmt::print("          worst row {:.2e} (tolerance {:.0e}) at request {}, position {}\n", row.error,
             check.tolerance().row, row.request, row.position);
  fmt::print("          worst LSE {:.2e} (tolerance {:.0e}) at request {}, position {}\n", lse.error,
             check.tolerance().lse, lse.request, lse.position);
}

bool has_context(const Options& options) {
  return std::any_of(options.batch.begin(), options.batch.end(),
                     [](const RequestSpec& request) { return request.context_len > 0; });
}

void print_report(const Options& options, const PrefillReport& report) {
  if (report.steps > 1) {
    fmt::print("step {0} of {0}\n{1}\n", report.steps, plan_table(report.last_plan, output_width()));
  }
  print_stages(report.stages);
  std::string paths;
  for (const Path path : kPaths) {
    paths +=
        fmt::format("{}{} {}", paths.empty() ? "" : ", ", name_of(path), report.tokens[static_cast<std::size_t>(path)]);
  }
  fmt::print("tokens    {} in {}: {}\n", query_tokens(options.batch), counted(report.steps, "step"), paths);
  fmt::print("speed     {:.0f} tokens/s\n", tokens_per_second(report, options));
  fmt::print("memory    {} peak, {} {}\n", format_bytes(peak_memory()), format_bytes(report.workspace_bytes),
             options.gpu ? "of the GPU's for workspace" : "of it workspace");
  if (has_context(options)) {
    fmt::print("context   {} to make the keys of earlier tokens, not counted above\n", format_ms(report.context_ms));
  }
  if (report.check) {
    print_check(*report.check);
  }
}

PrefillReport run(const ModelSource& model, std::int64_t layer, const Options& options) {
  const auto too_large = [](const std::string& what) {
    return Error(kMemoryOptions, "a step that fits the memory at hand", what);
  };
  try {
    return prefill(model, layer, options, [&](const PrefillStart& start) {
      tell_notes(model.config);
      note_long_requests(model.config, options.batch);
      if (!options.json) {
        print_start(model, layer, options, start);
      }
    });
  } catch (const std::bad_alloc&) {
    throw too_large("an allocation that failed");
  } catch (const Error& error) {
    if (error.argument() == "tensor") {
      throw too_large("no " + error.expected());
    }
    if (error.argument() == "device memory") {
      throw too_large("no " + error.expected() + " left of the GPU's");
    }
    throw;
  }
}

}  // namespace

ExitStatus run_prefill(const Options& options) {
  const ModelSource model = find_model(options.model, options.tp, options.reading);
  const std::int64_t layer = chosen_layer(model.config, options.layer);
  const PrefillReport report = run(model, layer, options);
  if (options.json) {
    print_report_json(model, layer, options, report);
  } else {
    print_report(options, report);
  }
  return !report.check || report.check->pass() ? kAllWell : kCheckFailed;
}

}  // namespace headrace::app
