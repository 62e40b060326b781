// SPDX-License-Identifier: Apache-2.0
#include "verify.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "check.h"
#include "headrace/error.h"
#include "reference_layer.h"
#include "target.h"
#include "verify_layer.h"

namespace headrace::app {
namespace {

/// A recording made in bfloat16 may be off the float32 layer by this much, or by so many times what bfloat16 changes in
/// our own layer. How much that is depends on the data.
constexpr RecordedTolerance kBfloat16Tolerance{1e-2, 2e-2};
constexpr double kOwnChanges = 2.0;
/// But by no more than this: our own layer may be wrong too, and what rounding changes so much tells no fault.
constexpr RecordedTolerance kMostBfloat16Tolerance{5e-2, 0.1};

RecordedErrors errors_of(const Tensor& output, const View<const float>& expected, const RecordedTolerance& tolerance) {
  OutputErrors errors;
  errors.add(output.view(), expected);
  return {errors.rows(), errors.relative(), errors.max_row(), tolerance};
}

/// Whether bfloat16 holds every value, as it does where the values come from a layer that was run in it.
bool is_bfloat16(const Tensor& values) {
  const View<const float> view = values.view_as<float>();
  return std::all_of(view.data(), view.data() + view.size(),
                     [](float value) { return static_cast<float>(bfloat16(value)) == value; });
}

double score_norm_of(const LayerResult& result) {
  double norm = 0.0;
  for (const PathResult& path : result.paths) {
    norm = std::max(norm, path.score_norm);
  }
  for (const SkippedPath& path : result.skipped) {
    norm = std::max(norm, path.covered_prefix ? path.covered_prefix->score_norm : 0.0);
  }
  return norm;
}

/// The recorded layers, their weights, and the selections they make, each loaded or computed once.
class Verification {
 public:
  Verification(const ModelSource& model, const std::vector<RecordedLayer>& layers, const std::filesystem::path& file,
               const Options& options, const StagesMaker& make)
      : model_(model), file_(file), options_(options), make_(make), device_(chosen_device(options)), layers_(layers) {}

  [[nodiscard]] std::vector<LayerResult> run() {
    std::vector<LayerResult> results;
    for (const RecordedLayer& recorded : layers_) {
      if (!options_.layer || *options_.layer == recorded.layer) {
        results.push_back(verify(recorded));
      }
    }
    if (results.empty()) {
      std::vector<std::int64_t> numbers;
      std::transform(layers_.begin(), layers_.end(), std::back_inserter(numbers),
                     [](const RecordedLayer& recorded) { return recorded.layer; });
      throw Error("--layer", fmt::format("a recorded layer: {}", fmt::join(numbers, ", ")),
                  fmt::format("{}", options_.layer.value_or(-1)));
    }
    return results;
  }

 private:
  [[nodiscard]] LayerResult verify(const RecordedLayer& recorded) {
    require_fit(recorded);
    const std::unique_ptr<Stages> stages = load(recorded.layer);
    LayerResult result;
    result.layer = recorded.layer;
    result.recorded_in_bfloat16 = is_bfloat16(recorded.output);
    const PromptSelection selection = selection_of(*stages, recorded, result);
    if (compares_with_recording(options_.compute, options_.format())) {
      run_paths(LayerRun(*stages, recorded, selection, options_, device_, nullptr), result);
      return result;
    }
    const ReferenceLayer reference =
        run_reference(model_, recorded, recorded_selection_of(recorded), DType::float32, options_);
    StageErrors errors(stages->attention(options_.format()), reference, check_tolerance(options_.compute).row);
    run_paths(LayerRun(*stages, recorded, selection, options_, device_, &errors), result);
    result.rounding = rounding_checks(recorded, reference, errors, result);
    return result;
  }

  void run_paths(const LayerRun& run, LayerResult& result) const {
    for (const Path path : kPaths) {
      if (options_.force && *options_.force != path) {
        continue;
      }
      const std::vector<std::string> unmet = run.unmet(path, run.rows());
      if (unmet.empty()) {
        result.paths.push_back(run.run(path, run.rows()));
      } else {
        result.skipped.push_back({path, unmet, covered_prefix(run, path)});
      }
    }
  }

  [[nodiscard]] static std::optional<PathResult> covered_prefix(const LayerRun& run, Path path) {
    const std::int64_t rows = run.covered_rows();
    if (rows == 0 || !run.unmet(path, rows).empty()) {
      return std::nullopt;
    }
    return run.run(path, rows);
  }

  [[nodiscard]] RoundingChecks rounding_checks(const RecordedLayer& recorded, const ReferenceLayer& reference,
                                               const StageErrors& errors, const LayerResult& result) {
    RoundingChecks checks;
    const View<const float> output = recorded.output.view_as<float>();
    checks.float32_layer = errors_of(reference.output, output, float32_tolerance(score_norm_of(result)));
    if (options_.compute == DType::bfloat16 && result.recorded_in_bfloat16) {
      checks.float32_layer.tolerance = bfloat16_tolerance(recorded, reference);
    }
    checks.queries = errors.queries();
    checks.latents = errors.latents();
    checks.wrong_cache_rows = errors.wrong_cache_rows();
    checks.output = errors.output();
    checks.tolerance = errors.tolerance();
    if (options_.format() == CacheFormat::fp8) {
      checks.scale = scale_effect(reference, static_cast<double>(options_.cache_scale));
    }
    return checks;
  }

  [[nodiscard]] RecordedTolerance bfloat16_tolerance(const RecordedLayer& recorded, const ReferenceLayer& reference) {
    const ReferenceLayer rounded =
        run_reference(model_, recorded, recorded_selection_of(recorded), DType::bfloat16, options_);
    const RecordedErrors own = errors_of(rounded.output, reference.output.view_as<float>(), {});
    return {std::clamp(kOwnChanges * own.rel_error, kBfloat16Tolerance.rel_error, kMostBfloat16Tolerance.rel_error),
            std::clamp(kOwnChanges * own.max_row_error, kBfloat16Tolerance.max_row_error,
                       kMostBfloat16Tolerance.max_row_error)};
  }

  /// @throws Error that names the recording and the model
  void require_fit(const RecordedLayer& recorded) const {
    try {
      (void)chosen_layer(model_.config, recorded.layer);
      require_width(recorded, model_.config);
      if (selects(recorded)) {
        (void)selecting_layer(recorded);
        if (options_.selection.kind == SelectionSource::Kind::indexer) {
          (void)scoring_layer(recorded);
        }
      }
    } catch (const Error& error) {
      const std::string what =
          error.argument() == "--layer" ? fmt::format("layer {}", recorded.layer) : error.argument();
      throw Error(fmt::format("{}: {}", file_.string(), what),
                  fmt::format("{}, to fit the model {}", error.expected(), model_.name), error.actual());
    }
  }

  [[nodiscard]] std::unique_ptr<Stages> load(std::int64_t number) const {
    return make_(model_, number, options_, device_);
  }

  [[nodiscard]] bool selects(const RecordedLayer& recorded) const {
    return model_.config.selection_rule(recorded.layer).kind() != SelectionRule::Kind::none;
  }

  /// The selection that a layer uses, and into `result` what there is to say of it.
  [[nodiscard]] PromptSelection selection_of(Stages& stages, const RecordedLayer& recorded, LayerResult& result) {
    if (!selects(recorded)) {
      return {};
    }
    const RecordedSelection& theirs = selection_recorded_in(selecting_layer(recorded));
    result.wide_rows = theirs.wide;
    compare_with_source(recorded, result);
    if (options_.selection.kind == SelectionSource::Kind::recorded) {
      return {theirs.selection(), {}};
    }
    const RecordedLayer& source = scoring_layer(recorded);
    const bool scores = source.layer == recorded.layer;
    auto own = own_.find(source.layer);
    if (own == own_.end()) {
      const RecordedSelection& scored = selection_recorded_in(source);
      OwnSelection made = scores ? select_and_match(stages, source, scored, options_)
                                 : select_and_match(*load(source.layer), source, scored, options_);
      own = own_.emplace(source.layer, std::move(made)).first;
    }
    if (scores) {
      const SelectionMatch& match = own->second.match;
      result.match = match;
      result.selection_pass =
          match.decided() && match.beats_chance() && match.share() >= least_selection_match(options_.compute);
    }
    return {own->second.buffer.selection(), rows_that_agree(own->second.buffer.index, theirs.index)};
  }

  [[nodiscard]] Selection recorded_selection_of(const RecordedLayer& recorded) {
    return selects(recorded) ? selection_recorded_in(selecting_layer(recorded)).selection() : Selection();
  }

  /// Rows whose own recorded selection is not that of the layer that scores for them, where both were recorded.
  void compare_with_source(const RecordedLayer& recorded, LayerResult& result) const {
    const std::int64_t number = model_.config.selection_source(recorded.layer);
    const RecordedLayer* const source = find_layer(layers_, number);
    if (number == recorded.layer || recorded.topk_indices.empty() || source == nullptr ||
        source->topk_indices.empty()) {
      return;
    }
    if (source->topk_indices.dim(0) != recorded.topk_indices.dim(0)) {
      result.rows_of_source = source->topk_indices.dim(0);
      return;
    }
    NotedRows& rows = result.differs_from_source.emplace();
    const std::vector<bool> agree = rows_that_agree(recorded.topk_indices, source->topk_indices);
    for (std::size_t row = 0; row < agree.size(); ++row) {
      if (!agree[row]) {
        rows.add(static_cast<std::int64_t>(row));
      }
    }
  }

  /// What was recorded as a layer's selection, as the contract reads it.
  [[nodiscard]] const RecordedSelection& selection_recorded_in(const RecordedLayer& recorded) {
    auto found = selections_.find(recorded.layer);
    if (found == selections_.end()) {
      RecordedSelection read = read_selection(recorded.topk_indices, model_.config.selection_rule(recorded.layer));
      found = selections_.emplace(recorded.layer, std::move(read)).first;
    }
    return found->second;
  }

  /// The recorded layer whose selection `recorded` uses: its own where it was recorded, else that of the layer that
  /// scores for it.
  [[nodiscard]] const RecordedLayer& selecting_layer(const RecordedLayer& recorded) const {
    return recorded.topk_indices.empty() ? scoring_layer(recorded) : recorded;
  }

  /// The recorded layer that scores for `recorded`, with a selection for each of its rows.
  [[nodiscard]] const RecordedLayer& scoring_layer(const RecordedLayer& recorded) const {
    const std::int64_t number = model_.config.selection_source(recorded.layer);
    const RecordedLayer* const source = find_layer(layers_, number);
    if (source == nullptr) {
      throw Error(fmt::format("layers.{}", number),
                  recorded.topk_indices.empty()
                      ? fmt::format("the selection that layer {} uses", recorded.layer)
                      : fmt::format("the layer that scores for layer {} (or --selection recorded)", recorded.layer),
                  "a recording without it");
    }
    const std::string name = fmt::format("layers.{}.topk_indices", number);
    if (source->topk_indices.empty()) {
      throw Error(name, "the selection of a layer that scores", "a recording without it");
    }
    if (source->topk_indices.dim(0) != recorded.hidden_states.dim(0)) {
      throw Error(name, fmt::format("{} rows, as layer {} has", recorded.hidden_states.dim(0), recorded.layer),
                  fmt::format("{} rows", source->topk_indices.dim(0)));
    }
    return *source;
  }

  const ModelSource& model_;
  const std::filesystem::path& file_;
  const Options& options_;
  const StagesMaker& make_;
  Device device_;
  const std::vector<RecordedLayer>& layers_;
  std::map<std::int64_t, RecordedSelection> selections_;  // by the layer it was recorded for
  std::map<std::int64_t, OwnSelection> own_;              // by the layer that scores
};

}  // namespace

RecordedTolerance float32_tolerance(double score_norm) noexcept {
  const double allowance = std::min(rounding_allowance(score_norm), check_tolerance(DType::float32).most_allowance);
  return {3e-6 * allowance, 1e-5 * allowance};
}

double least_selection_match(DType compute) { return compute == DType::float32 ? 1.0 : 0.95; }

bool LayerResult::pass() const noexcept { return !paths.empty() && all_that_ran_pass(); }

bool LayerResult::cannot_run() const noexcept { return paths.empty() && all_that_ran_pass(); }

bool LayerResult::all_that_ran_pass() const noexcept {
  const auto passes = [](const PathResult& result) { return result.pass(); };
  return selection_pass && (!rounding || rounding->pass()) && std::all_of(paths.begin(), paths.end(), passes) &&
         std::all_of(skipped.begin(), skipped.end(),
                     [&](const SkippedPath& path) { return !path.covered_prefix || passes(*path.covered_prefix); });
}

std::vector<LayerResult> verify(const ModelSource& model, const std::vector<RecordedLayer>& recording,
                                const std::filesystem::path& file, const Options& options, const StagesMaker& make) {
  return Verification(model, recording, file, options, make).run();
}

bool all_pass(const std::vector<LayerResult>& layers) noexcept {
  return std::all_of(layers.begin(), layers.end(), [](const LayerResult& layer) { return layer.pass(); });
}

}  // namespace headrace::app
