// SPDX-License-Identifier: Apache-2.0
#include "verify.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "check.h"
#include "headrace/error.h"
#include "headrace/recording.h"
#include "progress.h"
#include "recorded_selection.h"
#include "stages.h"
#include "stated_error.h"
#include "step.h"

namespace headrace::app {
namespace {

float element(const ConstAnyView& rows, std::int64_t row, std::int64_t i) {
  const std::int64_t offset = row * rows.stride(0) + i * rows.stride(1);
  return rows.dtype() == DType::bfloat16 ? static_cast<float>(static_cast<const bfloat16*>(rows.data())[offset])
                                         : static_cast<const float*>(rows.data())[offset];
}

/// Adds up what separates outputs from recorded ones.
class OutputErrors {
 public:
  /// @param counts  tells of a row whether it is to be compared
  template <class Counts>
  void add(const ConstAnyView& output, const View<const float>& recorded, const Counts& counts) {
    for (std::int64_t row = 0; row < recorded.dim(0); ++row) {
      if (!counts(row)) {
        continue;
      }
      ++rows_;
      double difference = 0.0;
      double reference = 0.0;
      for (std::int64_t i = 0; i < recorded.dim(1); ++i) {
        const double want = static_cast<double>(recorded(row, i));
        const double delta = static_cast<double>(element(output, row, i)) - want;
        difference += delta * delta;
        reference += want * want;
      }
      difference_ += difference;
      reference_ += reference;
      max_row_ = std::max(max_row_, relative_error(difference, reference));
    }
  }
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] double relative() const noexcept { return relative_error(difference_, reference_); }
  [[nodiscard]] double max_row() const noexcept { return max_row_; }

 private:
  std::int64_t rows_ = 0;
  double difference_ = 0.0;
  double reference_ = 0.0;
  double max_row_ = 0.0;
};

/// The rows of a step, of a selection for the whole prompt.
Selection rows_of(const Selection& selection, const Piece& piece) {
  if (selection.index.empty()) {
    return {};
  }
  Selection rows = selection;
  rows.index = selection.index.slice(piece.begin, piece.end);
  if (!selection.count.empty()) {
    rows.count = selection.count.slice(piece.begin, piece.end);
  }
  return rows;
}

/// A selection for the whole prompt.
struct PromptSelection {
  Selection selection;
  const std::vector<bool>* agrees = nullptr;  ///< per row, where it is our own: whether it is the recorded one
};

/// One recorded layer, ready to be run down any path.
class LayerRun {
 public:
  LayerRun(Stages& stages, const RecordedLayer& recorded, PromptSelection selection, const Options& options,
           const Device& device)
      : stages_(stages),
        recorded_(recorded),
        selection_(selection),
        options_(options),
        device_(device),
        attention_(stages.attention(options.format())),
        hidden_(hidden_states(recorded, stages.config(), options.compute)) {}

  [[nodiscard]] std::int64_t rows() const noexcept { return hidden_.dim(0); }
  [[nodiscard]] std::int64_t covered_rows() const noexcept {
    return std::min(rows(), attention_.rule.covered_prefix());
  }
  [[nodiscard]] std::vector<std::string> unmet(Path path, std::int64_t rows) const {
    return unmet_requirements(path, attention_, 0, rows, true, device_);
  }

  /// Runs the first `rows` tokens of the prompt, in chunks as the options say.
  [[nodiscard]] PathResult run(Path path, std::int64_t rows) const {
    Options options = options_;
    options.force = path;
    const std::vector<RequestSpec> batch{{rows, 0}};
    const PageTable table(batch, options.seed);
    stages_.begin(table, attention_.format, 0);
    OracleCheck check(check_tolerance(options.compute), rows_to_check(batch, attention_.rule, options, Check::sample));
    OutputErrors errors;
    const std::int64_t steps = query_steps(batch, options.prefill_chunk);
    Progress progress(fmt::format("layer {} {}", recorded_.layer, name_of(path)), steps);
    for (std::int64_t s = 0; s < steps; ++s) {
      const Step step(table, query_pieces(batch, options.prefill_chunk, s));
      run_step(step, options, check, errors);
      progress.advance(1);
    }
    return {path,
            rows,
            errors.rows(),
            errors.relative(),
            errors.max_row(),
            check.worst_lse().error,
            verify_tolerance(options.compute, attention_.format)};
  }

 private:
  /// A path that the user did not force cannot run for lack of workspace only: its other requirements are met.
  [[nodiscard]] Plan plan_path(const Batch& batch, const Options& options) const {
    try {
      // Every path is forced, so rates decide nothing.
      return plan_step(attention_, batch, options, {device_, Profile::nominal_cpu(options.compute)});
    } catch (const ForcedPathError& error) {
      if (options_.force) {
        throw;
      }
      const std::string path(name_of(*options.force));
      throw StatedError("--workspace-limit", "enough for every path", error.actual(),
                        fmt::format("{} cannot run: {}", path, error.actual().substr(path.size() + 2)));
    }
  }

  void run_step(const Step& step, const Options& options, OracleCheck& check, OutputErrors& errors) const {
    const Piece& piece = step.pieces().front();
    const Plan plan = plan_path(step.batch(), options);
    stages_.open(step, hidden_.view().slice(piece.begin, piece.end));
    stages_.project(/*scoring=*/false);
    stages_.append();
    stages_.use(rows_of(selection_.selection, piece));
    stages_.prepare(plan, /*with_lse=*/true);
    stages_.attend(plan);
    const AttendedStep attended = stages_.attended();
    check.add(attention_, attended.weights, attended.inputs, step, attended.out, attended.lse, options.threads);
    stages_.output();
    errors.add(stages_.out(), recorded_.output.view_as<float>().slice(piece.begin, piece.end), [&](std::int64_t row) {
      // A row whose own selection is another has another answer, which the recording does not hold.
      return selection_.agrees == nullptr || (*selection_.agrees)[static_cast<std::size_t>(piece.begin + row)];
    });
    stages_.close();
  }

  Stages& stages_;
  const RecordedLayer& recorded_;
  PromptSelection selection_;
  const Options& options_;
  const Device& device_;
  Attention attention_;
  Tensor hidden_;
};

/// The recorded layers, their weights, and the selections they make, each loaded or computed once.
class Recording {
 public:
  Recording(const ModelSource& model, const std::filesystem::path& file, const Options& options)
      : model_(model), file_(file), options_(options), device_(chosen_device(options)), layers_(load_recording(file)) {}

  [[nodiscard]] std::vector<LayerResult> verify() {
    std::vector<LayerResult> results;
    for (const RecordedLayer& recorded : layers_) {
      if (!options_.layer || *options_.layer == recorded.layer) {
        results.push_back(verify(recorded));
      }
    }
    if (results.empty()) {
      throw Error("--layer", "a layer of the recording", fmt::format("{}", options_.layer.value_or(-1)));
    }
    return results;
  }

 private:
  [[nodiscard]] LayerResult verify(const RecordedLayer& recorded) {
    require_fit(recorded);
    const std::unique_ptr<Stages> stages = load(recorded.layer);
    LayerResult result;
    result.layer = recorded.layer;
    const LayerRun run(*stages, recorded, selection_of(*stages, recorded, result), options_, device_);
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
    return result;
  }

  /// @throws Error that names the recording and the model
  void require_fit(const RecordedLayer& recorded) const {
    try {
      (void)chosen_layer(model_.config, recorded.layer);
      require_width(recorded, model_.config);
      if (model_.config.selection_rule(recorded.layer).kind() != SelectionRule::Kind::none) {
        (void)source_of(recorded);
      }
    } catch (const Error& error) {
      const std::string what =
          error.argument() == "--layer" ? fmt::format("layer {}", recorded.layer) : error.argument();
      throw Error(fmt::format("{}: {}", file_.string(), what),
                  fmt::format("{}, to fit the model {}", error.expected(), model_.name), error.actual());
    }
  }

  [[nodiscard]] static std::optional<PathResult> covered_prefix(const LayerRun& run, Path path) {
    const std::int64_t rows = run.covered_rows();
    if (rows == 0 || !run.unmet(path, rows).empty()) {
      return std::nullopt;
    }
    return run.run(path, rows);
  }

  [[nodiscard]] std::unique_ptr<Stages> load(std::int64_t number) const {
    return make_stages(model_, number, options_, device_);
  }

  /// The selection that a layer uses, and into `result` how ours compares with what was recorded.
  [[nodiscard]] PromptSelection selection_of(Stages& stages, const RecordedLayer& recorded, LayerResult& result) {
    if (model_.config.selection_rule(recorded.layer).kind() == SelectionRule::Kind::none) {
      return {};
    }
    const RecordedLayer& source = source_of(recorded);
    if (options_.selection.kind == SelectionSource::Kind::recorded) {
      return {{source.topk_indices.view_as<std::int32_t>(), {}}, nullptr};
    }
    const bool scores = source.layer == recorded.layer;
    auto own = own_.find(source.layer);
    if (own == own_.end()) {
      OwnSelection made =
          scores ? select_and_match(stages, source, options_) : select_and_match(*load(source.layer), source, options_);
      own = own_.emplace(source.layer, std::move(made)).first;
    }
    if (scores) {
      result.selection_match = own->second.match;
      result.ties = own->second.ties;
      result.selection_pass = own->second.match >= least_selection_match(options_.compute);
    }
    return {own->second.buffer.selection(), &own->second.agrees};
  }

  /// The recorded layer that scores for `recorded`, with a selection for each of its rows.
  [[nodiscard]] const RecordedLayer& source_of(const RecordedLayer& recorded) const {
    const std::int64_t number = model_.config.selection_source(recorded.layer);
    const RecordedLayer* const source = find_layer(layers_, number);
    if (source == nullptr) {
      throw Error(fmt::format("layers.{}", number), fmt::format("the selection that layer {} uses", recorded.layer),
                  "a recording without it");
    }
    const std::string name = fmt::format("layers.{}.topk_indices", number);
    if (source->topk_indices.empty()) {
      throw Error(name, "the selection of a layer that scores", "a recording without it");
    }
    const std::int64_t width = model_.config.selection_rule(number).width();
    if (source->topk_indices.dim(0) != recorded.hidden_states.dim(0) || source->topk_indices.dim(1) > width) {
      throw Error(name, fmt::format("{} rows of at most {} positions", recorded.hidden_states.dim(0), width),
                  fmt::format("{} of {}", source->topk_indices.dim(0), source->topk_indices.dim(1)));
    }
    return *source;
  }

  const ModelSource& model_;
  const std::filesystem::path& file_;
  const Options& options_;
  Device device_;
  std::vector<RecordedLayer> layers_;
  std::map<std::int64_t, OwnSelection> own_;
};

}  // namespace

double least_selection_match(DType compute) { return compute == DType::float32 ? 1.0 : 0.95; }

VerifyTolerance verify_tolerance(DType compute, CacheFormat format) {
  const double lse = check_tolerance(compute).lse;
  if (format == CacheFormat::fp8 || format == CacheFormat::fp8_ds_mla) {
    return {6e-2, 12e-2, lse};
  }
  if (compute == DType::float32 && format == CacheFormat::float32) {
    return {3e-6, 1e-5, lse};
  }
  return {1e-2, 2e-2, lse};
}

bool LayerResult::pass() const noexcept { return !paths.empty() && all_that_ran_pass(); }

bool LayerResult::cannot_run() const noexcept { return paths.empty() && all_that_ran_pass(); }

bool LayerResult::all_that_ran_pass() const noexcept {
  const auto passes = [](const PathResult& result) { return result.pass(); };
  return selection_pass && std::all_of(paths.begin(), paths.end(), passes) &&
         std::all_of(skipped.begin(), skipped.end(),
                     [&](const SkippedPath& path) { return !path.covered_prefix || passes(*path.covered_prefix); });
}

std::vector<LayerResult> verify(const ModelSource& model, const std::filesystem::path& recording,
                                const Options& options) {
  return Recording(model, recording, options).verify();
}

}  // namespace headrace::app
