// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "numbers.h"
#include "table.h"
#include "verify_report.h"

namespace headrace::app {
namespace {

constexpr std::size_t kLineWidth = 80;
constexpr double kZeroedWorthAWord = 0.01;

void add_note(std::string& text, const std::string& note) {
  for (const std::string& line : wrap(note, kLineWidth)) {
    text += line + '\n';
  }
}

/// A scale is no use that lets the largest value saturate.
double up_to_two_digits(double value) {
  const double unit = std::pow(10.0, std::floor(std::log10(value)) - 1.0);
  return std::ceil(value / unit) * unit;
}

/// "3e-06", "6.7e-06".
std::string tolerance_text(double tolerance) {
  std::string text = fmt::format("{:.1e}", tolerance);
  if (const std::size_t zero = text.find(".0e"); zero != std::string::npos) {
    text.erase(zero, 2);
  }
  return text;
}

void add_path(Table& table, const PathResult& result, const std::string& what) {
  table.add({what, fmt::format("{}/{}", result.recorded.rows, result.rows_run),
             fmt::format("{:.2e}", result.recorded.rel_error), fmt::format("{:.2e}", result.recorded.max_row_error),
             fmt::format("{:.2e}", result.attention_error), fmt::format("{:.2e}", result.lse_error),
             result.pass() ? "pass" : "FAIL"});
}

const PathResult* first_result(const LayerResult& layer) {
  if (!layer.paths.empty()) {
    return &layer.paths.front();
  }
  for (const SkippedPath& path : layer.skipped) {
    if (path.covered_prefix) {
      return &*path.covered_prefix;
    }
  }
  return nullptr;
}

/// The selection match, and how much of the outputs it leaves to compare.
void add_match(std::string& text, const LayerResult& layer, DType compute) {
  if (layer.match) {
    const SelectionMatch& match = *layer.match;
    add_note(text,
             fmt::format("selection match {:.6f} of {} (at least {:g} to pass), {} by a tie", match.share(),
                         counted(match.rows, "row"), least_selection_match(compute), counted(match.ties, "position")));
    if (!match.decided()) {
      add_note(text, fmt::format("FAIL: our own scores do not decide what is selected: {} of {} have mostly equal ones",
                                 match.undecided_rows, counted(match.rows, "row")));
    }
    if (!match.beats_chance()) {
      add_note(text, fmt::format("FAIL: {} of the {} that could miss do", match.positions - match.matching,
                                 counted(match.could_miss, "position")));
    }
  }
  if (!layer.paths.empty() && layer.paths.front().recorded.rows < layer.paths.front().rows_run) {
    const PathResult& one = layer.paths.front();
    add_note(text, fmt::format("rows that select otherwise than recorded are not compared{}",
                               2 * one.recorded.rows < one.rows_run ? ": note that they are more than half" : ""));
  }
}

/// What is unusual about the recorded selection.
void add_selection_notes(std::string& text, const LayerResult& layer) {
  if (layer.wide_rows.first) {
    add_note(text, fmt::format("note: {} of the recorded selection {} more keys than the rule lets {}, the first at "
                               "position {}",
                               counted(layer.wide_rows.rows, "row"), layer.wide_rows.rows == 1 ? "selects" : "select",
                               layer.wide_rows.rows == 1 ? "it" : "them", *layer.wide_rows.first));
  }
  if (layer.differs_from_source && layer.differs_from_source->first) {
    const NotedRows& rows = *layer.differs_from_source;
    add_note(text, fmt::format("note: the layer's own recorded selection was used; {} of it {} from that of the layer "
                               "that scores for it, the first at position {}",
                               counted(rows.rows, "row"), rows.rows == 1 ? "differs" : "differ", *rows.first));
  }
}

/// Why nothing is said of a difference.
void add_source_note(std::string& text, const LayerResult& layer) {
  if (layer.rows_of_source) {
    add_note(text,
             fmt::format("note: the layer's own recorded selection was used; that of the layer that scores for it "
                         "has {} and was not compared",
                         counted(*layer.rows_of_source, "row")));
  }
}

void add_recording_note(std::string& text, const LayerResult& layer, DType compute) {
  if (!layer.recorded_in_bfloat16) {
    return;
  }
  if (compute == DType::bfloat16) {
    add_note(text, "note: the recording was made in bfloat16, which the float32 layer's tolerances allow for");
  } else if (!layer.pass()) {
    add_note(text, "note: the recording was made in bfloat16; with --dtype bfloat16 tolerances allow for that");
  }
}

std::string paths_table(const LayerResult& layer) {
  using Align = Table::Align;
  Table table({{"path"},
               {"rows", Align::right},
               {"rel error", Align::right},
               {"worst row", Align::right},
               {"attention", Align::right},
               {"LSE", Align::right},
               {""}});
  for (const PathResult& result : layer.paths) {
    add_path(table, result, std::string(name_of(result.path)));
  }
  for (const SkippedPath& path : layer.skipped) {
    if (path.covered_prefix) {
      add_path(table, *path.covered_prefix, fmt::format("{} (covered)", name_of(path.path)));
    }
  }
  if (const PathResult* const one = first_result(layer)) {
    const std::optional<RecordedTolerance>& recorded = one->recorded.tolerance;
    table.add({"tolerance", "", recorded ? tolerance_text(recorded->rel_error) : "none",
               recorded ? tolerance_text(recorded->max_row_error) : "none", tolerance_text(one->tolerance.row),
               tolerance_text(one->tolerance.lse)});
  }
  return table.to_string();
}

std::string rounding_table(const RoundingChecks& checks) {
  using Align = Table::Align;
  Table table({{"stage"}, {"error", Align::right}, {"tolerance", Align::right}, {""}});
  const auto add = [&](const char* what, double error, double tolerance) {
    table.add({what, fmt::format("{:.2e}", error), tolerance_text(tolerance), error <= tolerance ? "pass" : "FAIL"});
  };
  const RecordedErrors& layer = checks.float32_layer;
  add("float32 layer against the recording, rel error", layer.rel_error, layer.tolerance->rel_error);
  add("float32 layer against the recording, worst row", layer.max_row_error, layer.tolerance->max_row_error);
  add("queries", checks.queries, checks.tolerance);
  add("latents and rope keys", checks.latents, checks.tolerance);
  table.add({"rows of the cache with wrong bytes", fmt::format("{}", checks.wrong_cache_rows), "0",
             checks.wrong_cache_rows == 0 ? "pass" : "FAIL"});
  add("output projection", checks.output, checks.tolerance);
  return table.to_string();
}

void add_rounding(std::string& text, const RoundingChecks& checks, const Options& options) {
  text += rounding_table(checks);
  if (!checks.scale) {
    return;
  }
  const ScaleEffect& effect = *checks.scale;
  add_note(text, fmt::format("fp8 scale {}: {} of {} values saturate, {:.3f} % become zero{}", options.cache_scale,
                             effect.saturated, effect.values, 100.0 * effect.zeroed_share(),
                             effect.pass()
                                 ? ""
                                 : fmt::format(": FAIL, the scale lets more than {:g} % saturate or more "
                                               "than {:g} % become zero",
                                               100.0 * ScaleEffect::kMostSaturated, 100.0 * ScaleEffect::kMostZeroed)));
  if (effect.largest > 0.0 && (effect.saturated > 0 || effect.zeroed_share() > kZeroedWorthAWord)) {
    add_note(text, fmt::format("note: the scale does not suit this layer, whose largest value is {:.3g}; "
                               "--kv-cache-scale {:.2g} would hold it",
                               effect.largest, up_to_two_digits(effect.largest / 448.0)));
  }
}

std::string layer_text(const LayerResult& layer, const Options& options) {
  std::string text = fmt::format("layer {}: {}\n", layer.layer,
                                 layer.pass()         ? "pass"
                                 : layer.cannot_run() ? "cannot run"
                                                      : "FAIL");
  add_match(text, layer, options.compute);
  add_selection_notes(text, layer);
  add_source_note(text, layer);
  add_recording_note(text, layer, options.compute);
  text += paths_table(layer);
  for (const SkippedPath& path : layer.skipped) {
    add_note(text, fmt::format("{} cannot serve the whole prompt: {}", name_of(path.path), join(path.unmet)));
  }
  if (layer.rounding) {
    add_rounding(text, *layer.rounding, options);
  }
  return text + '\n';
}

/// The last line.
std::string verdict(const Options& options, const ReadingResult& result) {
  if (result.pass()) {
    return "all pass";
  }
  if (result.fails()) {
    return "FAIL";
  }
  return options.force ? fmt::format("--force: {} cannot run", name_of(*options.force)) : "no path can run";
}

/// Which reading what follows is of, where there is more to say than that it is the usual one.
void add_readings(std::string& text, const VerifyReport& report, const Options& options) {
  const Reading reported = report.reported().reading;
  if (report.readings.size() > 1) {
    text += "the configuration has two readings, and the recording names none:\n";
    for (const ReadingResult& result : report.readings) {
      add_note(text, fmt::format("  --reading {}: {}", name_of(result.reading),
                                 result.refusal != nullptr ? "refused: " + result.refusal_text
                                 : result.pass()           ? "pass"
                                 : result.fails()          ? "FAIL"
                                                           : "cannot run"));
    }
    text += fmt::format("reported is the reading of {}\n", name_of(reported));
    if (report.undecided()) {
      add_note(text, fmt::format("note: what was compared cannot tell the readings apart{}",
                                 options.selection.kind == SelectionSource::Kind::recorded
                                     ? "; --selection indexer compares our own indexer, too"
                                     : ""));
    }
  } else if (report.recorded_reading == reported) {
    text += fmt::format("reading {}, as the recording says\n", name_of(reported));
  } else if (report.recorded_reading) {
    text += fmt::format("note: reading {}, and the recording names {}\n", name_of(reported),
                        name_of(*report.recorded_reading));
  }
}

}  // namespace

std::string verify_text(const VerifyReport& report, const Options& options) {
  const ReadingResult& reported = report.reported();
  std::string text =
      fmt::format("{}\nagainst {}\n{}{}, cache {}, selection {}, {}\n", report.model, report.recording.string(),
                  options.gpu ? device_text(options) + ", " : "", name_of(options.compute), name_of(options.format()),
                  options.selection.text,
                  options.prefill_chunk == 0 ? "whole prompt" : fmt::format("{} tokens a step", options.prefill_chunk));
  if (options.format() == CacheFormat::fp8) {
    text += cache_scale_text(options) + '\n';
  }
  add_readings(text, report, options);
  text += '\n';
  for (const LayerResult& layer : reported.layers) {
    text += layer_text(layer, options);
  }
  return text + verdict(options, reported) + '\n';
}

}  // namespace headrace::app
