// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "commands.h"
#include "numbers.h"
#include "output.h"
#include "table.h"
#include "verify.h"

namespace headrace::app {
namespace {

constexpr std::size_t kLineWidth = 118;

Json path_json(const PathResult& result) {
  return {{"path", name_of(result.path)},
          {"rows", result.rows},
          {"rows_run", result.rows_run},
          {"rel_error", number(result.rel_error)},
          {"max_row_error", number(result.max_row_error)},
          {"lse_error", number(result.lse_error)},
          {"tolerance", result.tolerance.rel_error},
          {"max_row_tolerance", result.tolerance.max_row_error},
          {"lse_tolerance", result.tolerance.lse_error},
          {"pass", result.pass()}};
}

Json layer_json(const LayerResult& layer, DType compute) {
  Json paths = Json::array();
  for (const PathResult& result : layer.paths) {
    paths.push_back(path_json(result));
  }
  Json skipped = Json::array();
  for (const SkippedPath& path : layer.skipped) {
    skipped.push_back({{"path", name_of(path.path)},
                       {"unmet", path.unmet},
                       {"covered_prefix", path.covered_prefix ? path_json(*path.covered_prefix) : Json(nullptr)}});
  }
  return {{"layer", layer.layer},
          {"selection_match", layer.selection_match ? number(*layer.selection_match) : Json(nullptr)},
          {"selection_match_required", layer.selection_match ? Json(least_selection_match(compute)) : Json(nullptr)},
          {"ties", layer.ties ? Json(*layer.ties) : Json(nullptr)},
          {"pass", layer.pass()},
          {"cannot_run", layer.cannot_run()},
          {"paths", std::move(paths)},
          {"skipped", std::move(skipped)}};
}

void add_path(Table& table, const PathResult& result, const std::string& what) {
  table.add({what, fmt::format("{}/{}", result.rows, result.rows_run), fmt::format("{:.2e}", result.rel_error),
             fmt::format("{:.2e}", result.max_row_error), fmt::format("{:.2e}", result.lse_error),
             fmt::format("{:.2g} / {:.2g} / {:.2g}", result.tolerance.rel_error, result.tolerance.max_row_error,
                         result.tolerance.lse_error),
             result.pass() ? "pass" : "FAIL"});
}

/// The selection match, and how much of the outputs it leaves to compare.
void print_match(const LayerResult& layer, DType compute) {
  if (layer.selection_match) {
    fmt::print("selection match {:.6f} (at least {:g} to pass), {} by a tie\n", *layer.selection_match,
               least_selection_match(compute), counted(*layer.ties, "position"));
  }
  if (!layer.paths.empty() && layer.paths.front().rows < layer.paths.front().rows_run) {
    const PathResult& one = layer.paths.front();
    fmt::print("rows that select otherwise than recorded are not compared{}\n",
               2 * one.rows < one.rows_run ? ": note that they are more than half" : "");
  }
}

void print_layer(const LayerResult& layer, DType compute) {
  fmt::print("layer {}: {}\n", layer.layer, layer.pass() ? "pass" : layer.cannot_run() ? "cannot run" : "FAIL");
  print_match(layer, compute);
  using Align = Table::Align;
  Table table({{"path"},
               {"rows", Align::right},
               {"rel error", Align::right},
               {"worst row", Align::right},
               {"LSE", Align::right},
               {"tolerances: rel / row / LSE"},
               {""}});
  for (const PathResult& result : layer.paths) {
    add_path(table, result, std::string(name_of(result.path)));
  }
  for (const SkippedPath& path : layer.skipped) {
    if (path.covered_prefix) {
      add_path(table, *path.covered_prefix, fmt::format("{} (covered rows only)", name_of(path.path)));
    }
  }
  fmt::print("{}", table.to_string());
  for (const SkippedPath& path : layer.skipped) {
    const std::string why = fmt::format("{} cannot serve the whole prompt: {}", name_of(path.path), join(path.unmet));
    for (const std::string& line : wrap(why, kLineWidth)) {
      fmt::print("{}\n", line);
    }
  }
  fmt::print("\n");
}

/// The last line.
std::string verdict(const Options& options, const std::vector<LayerResult>& layers, bool pass) {
  if (pass) {
    return "all pass";
  }
  const bool fails = std::any_of(layers.begin(), layers.end(),
                                 [](const LayerResult& layer) { return !layer.pass() && !layer.cannot_run(); });
  if (fails) {
    return "FAIL";
  }
  return options.force ? fmt::format("--force: {} cannot run", name_of(*options.force)) : "no path can run";
}

}  // namespace

ExitStatus run_verify(const Options& options) {
  if (options.selection.kind == SelectionSource::Kind::generator) {
    throw Error("--selection", "recorded or indexer", "\"" + options.selection.text + "\"");
  }
  const ModelSource model = find_model(options.model, 1, options.reading);
  if (!model.folder) {
    throw Error("--model", "a checkpoint folder: config.json, and model.safetensors or the shards of its index",
                model.is_preset ? fmt::format("the preset \"{}\", which has no weights", model.name)
                                : fmt::format("\"{}\", which has no weights", model.name));
  }
  const std::filesystem::path file =
      options.recording.empty() ? *model.folder / "recording.safetensors" : options.recording;
  const std::vector<LayerResult> layers = verify(model, file, options);
  const bool pass = std::all_of(layers.begin(), layers.end(), [](const LayerResult& layer) { return layer.pass(); });
  if (options.json) {
    Json document = new_document();
    document["pass"] = pass;
    document["device"] = device_text(options);
    document["model"] = model.name;
    document["dtype"] = name_of(options.compute);
    document["kv_cache_dtype"] = name_of(options.format());
    document["selection"] = options.selection.text;
    document["prefill_chunk"] = options.prefill_chunk == 0 ? Json(nullptr) : Json(options.prefill_chunk);
    document["layers"] = Json::array();
    for (const LayerResult& layer : layers) {
      document["layers"].push_back(layer_json(layer, options.compute));
    }
    print_json(document);
  } else {
    fmt::print("{}\nagainst {}\n{}{}, cache {}, selection {}, {}\n\n", model.name, file.string(),
               options.gpu ? device_text(options) + ", " : "", name_of(options.compute), name_of(options.format()),
               options.selection.text,
               options.prefill_chunk == 0 ? "whole prompt" : fmt::format("{} tokens a step", options.prefill_chunk));
    for (const LayerResult& layer : layers) {
      print_layer(layer, options.compute);
    }
    fmt::print("{}\n", verdict(options, layers, pass));
  }
  return pass ? kAllWell : kCheckFailed;
}

}  // namespace headrace::app
