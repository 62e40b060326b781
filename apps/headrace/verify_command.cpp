// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "commands.h"
#include "output.h"
#include "table.h"
#include "verify.h"

namespace headrace::app {
namespace {

Json path_json(const PathResult& result) {
  return {{"path", name_of(result.path)},
          {"rows", result.rows},
          {"rel_error", number(result.rel_error)},
          {"max_row_error", number(result.max_row_error)},
          {"lse_error", number(result.lse_error)},
          {"tolerance", result.tolerance.rel_error},
          {"max_row_tolerance", result.tolerance.max_row_error},
          {"lse_tolerance", result.tolerance.lse_error},
          {"pass", result.pass()}};
}

Json layer_json(const LayerResult& layer) {
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
          {"ties", layer.ties ? Json(*layer.ties) : Json(nullptr)},
          {"pass", layer.pass()},
          {"paths", std::move(paths)},
          {"skipped", std::move(skipped)}};
}

void add_path(Table& table, const PathResult& result, const std::string& what) {
  table.add({what, fmt::format("{}", result.rows), fmt::format("{:.2e}", result.rel_error),
             fmt::format("{:.2e}", result.max_row_error), fmt::format("{:.2e}", result.lse_error),
             fmt::format("{:.2g} / {:.2g} / {:.2g}", result.tolerance.rel_error, result.tolerance.max_row_error,
                         result.tolerance.lse_error),
             result.pass() ? "pass" : "FAIL"});
}

void print_layer(const LayerResult& layer) {
  fmt::print("layer {}: {}", layer.layer, layer.pass() ? "pass" : "FAIL");
  if (layer.selection_match) {
    fmt::print("; selection match {:.6f}, {} positions by a tie (rows that select otherwise are not compared)",
               *layer.selection_match, *layer.ties);
  }
  fmt::print("\n");
  using Align = Table::Align;
  Table table({{"path"},
               {"rows", Align::right},
               {"rel error", Align::right},
               {"worst row", Align::right},
               {"LSE", Align::right},
               {"tolerances"},
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
    fmt::print("{} cannot serve the whole prompt: {}\n", name_of(path.path), join(path.unmet));
  }
  fmt::print("\n");
}

bool a_forced_path_was_skipped(const Options& options, const std::vector<LayerResult>& layers) {
  return options.force &&
         std::any_of(layers.begin(), layers.end(), [](const LayerResult& layer) { return !layer.skipped.empty(); });
}

}  // namespace

ExitStatus run_verify(const Options& options) {
  if (options.selection.kind == SelectionSource::Kind::generator) {
    throw Error("--selection", "recorded or indexer", "\"" + options.selection.text + "\"");
  }
  const ModelSource model = find_model(options.model, 1);
  if (!model.folder) {
    throw Error("--model", "a folder with weights: model.safetensors, or the shards of model.safetensors.index.json",
                "\"" + options.model + "\"");
  }
  const std::filesystem::path file =
      options.recording.empty() ? *model.folder / "recording.safetensors" : options.recording;
  const std::vector<LayerResult> layers = verify(model, file, options);
  const bool pass = !a_forced_path_was_skipped(options, layers) &&
                    std::all_of(layers.begin(), layers.end(), [](const LayerResult& layer) { return layer.pass(); });
  if (options.json) {
    Json document = new_document();
    document["pass"] = pass;
    document["model"] = model.name;
    document["dtype"] = name_of(options.compute);
    document["kv_cache_dtype"] = name_of(options.format());
    document["selection"] = options.selection.text;
    document["prefill_chunk"] = options.prefill_chunk == 0 ? Json(nullptr) : Json(options.prefill_chunk);
    document["layers"] = Json::array();
    for (const LayerResult& layer : layers) {
      document["layers"].push_back(layer_json(layer));
    }
    print_json(document);
  } else {
    fmt::print("{} against {}: {}, cache {}, selection {}, {}\n\n", model.name, file.string(), name_of(options.compute),
               name_of(options.format()), options.selection.text,
               options.prefill_chunk == 0 ? "whole prompt" : fmt::format("{} tokens a step", options.prefill_chunk));
    for (const LayerResult& layer : layers) {
      print_layer(layer);
    }
    fmt::print("{}\n", pass ? "all pass" : "FAIL");
  }
  return pass ? kAllWell : kCheckFailed;
}

}  // namespace headrace::app
