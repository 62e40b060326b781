// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "verify_report.h"

namespace headrace::app {
namespace {

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json to_json(const NotedRows& rows) { return {{"rows", rows.rows}, {"first", or_null(rows.first)}}; }

/// The fields of errors against the recording; their tolerances are null where they are for information.
void add_recorded(Json& json, const RecordedErrors& errors) {
  json["rows"] = errors.rows;
  json["rel_error"] = number(errors.rel_error);
  json["max_row_error"] = number(errors.max_row_error);
  json["tolerance"] = errors.tolerance ? Json(errors.tolerance->rel_error) : Json(nullptr);
  json["max_row_tolerance"] = errors.tolerance ? Json(errors.tolerance->max_row_error) : Json(nullptr);
}

Json to_json(const PathResult& result) {
  Json json = {{"path", name_of(result.path)}};
  add_recorded(json, result.recorded);
  json["rows_run"] = result.rows_run;
  json["oracle_rows"] = result.oracle_rows;
  json["attention_error"] = number(result.attention_error);
  json["attention_tolerance"] = result.tolerance.row;
  json["lse_error"] = number(result.lse_error);
  json["lse_tolerance"] = result.tolerance.lse;
  json["score_norm"] = number(result.score_norm);
  json["pass"] = result.pass();
  return json;
}

Json to_json(const ScaleEffect& effect) {
  return {{"values", effect.values},
          {"saturated", effect.saturated},
          {"zeroed", effect.zeroed},
          {"largest", number(effect.largest)},
          {"pass", effect.pass()}};
}

Json to_json(const RoundingChecks& checks) {
  Json layer = Json::object();
  add_recorded(layer, checks.float32_layer);
  layer["pass"] = checks.float32_layer.pass();
  return {{"float32_layer", std::move(layer)},
          {"query_error", number(checks.queries)},
          {"latent_error", number(checks.latents)},
          {"wrong_cache_rows", checks.wrong_cache_rows},
          {"output_error", number(checks.output)},
          {"stage_tolerance", checks.tolerance},
          {"scale_effect", checks.scale ? to_json(*checks.scale) : Json(nullptr)},
          {"pass", checks.pass()}};
}

Json to_json(const LayerResult& layer, DType compute) {
  Json paths = Json::array();
  for (const PathResult& result : layer.paths) {
    paths.push_back(to_json(result));
  }
  Json skipped = Json::array();
  for (const SkippedPath& path : layer.skipped) {
    skipped.push_back({{"path", name_of(path.path)},
                       {"unmet", path.unmet},
                       {"covered_prefix", path.covered_prefix ? to_json(*path.covered_prefix) : Json(nullptr)}});
  }
  return {{"layer", layer.layer},
          {"selection_match", layer.match ? number(layer.match->share()) : Json(nullptr)},
          {"selection_match_required", layer.match ? Json(least_selection_match(compute)) : Json(nullptr)},
          {"selection_rows", layer.match ? Json(layer.match->rows) : Json(nullptr)},
          {"undecided_rows", layer.match ? Json(layer.match->undecided_rows) : Json(nullptr)},
          {"ties", layer.match ? Json(layer.match->ties) : Json(nullptr)},
          {"selection_pass", layer.selection_pass},
          {"wide_rows", to_json(layer.wide_rows)},
          {"differs_from_source", layer.differs_from_source ? to_json(*layer.differs_from_source) : Json(nullptr)},
          {"rows_of_source", or_null(layer.rows_of_source)},
          {"recorded_in_bfloat16", layer.recorded_in_bfloat16},
          {"rounding", layer.rounding ? to_json(*layer.rounding) : Json(nullptr)},
          {"pass", layer.pass()},
          {"cannot_run", layer.cannot_run()},
          {"paths", std::move(paths)},
          {"skipped", std::move(skipped)}};
}

Json tried_json(const std::vector<ReadingResult>& readings) {
  Json tried = Json::array();
  for (const ReadingResult& result : readings) {
    tried.push_back({{"reading", name_of(result.reading)},
                     {"pass", result.pass()},
                     {"refusal", result.refusal != nullptr ? Json(result.refusal_text) : Json(nullptr)}});
  }
  return tried;
}

}  // namespace

Json verify_json(const VerifyReport& report, const Options& options) {
  const ReadingResult& reported = report.reported();
  Json document = new_document();
  document["pass"] = reported.pass();
  document["device"] = device_text(options);
  document["model"] = report.model;
  add_reading(document, report.config);
  document["readings"] = tried_json(report.readings);
  document["readings_undecided"] = report.undecided();
  document["recorded_reading"] = report.recorded_reading ? Json(name_of(*report.recorded_reading)) : Json(nullptr);
  document["dtype"] = name_of(options.compute);
  document["kv_cache_dtype"] = name_of(options.format());
  document["kv_cache_scale"] = options.format() == CacheFormat::fp8 ? Json(options.cache_scale) : Json(nullptr);
  document["selection"] = options.selection.text;
  document["prefill_chunk"] = options.prefill_chunk == 0 ? Json(nullptr) : Json(options.prefill_chunk);
  document["layers"] = Json::array();
  for (const LayerResult& layer : reported.layers) {
    document["layers"].push_back(to_json(layer, options.compute));
  }
  return document;
}

}  // namespace headrace::app
