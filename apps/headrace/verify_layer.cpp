// SPDX-License-Identifier: Apache-2.0
#include "verify_layer.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "headrace/error.h"
#include "progress.h"
#include "stated_error.h"

namespace headrace::app {
namespace {

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

}  // namespace

LayerRun::LayerRun(Stages& stages, const RecordedLayer& recorded, const PromptSelection& selection,
                   const Options& options, const Device& device, StageErrors* stage_errors)
    : stages_(stages),
      recorded_(recorded),
      selection_(selection),
      options_(options),
      device_(device),
      stage_errors_(stage_errors),
      attention_(stages.attention(options.format())),
      hidden_(hidden_states(recorded, stages.config(), options.compute)) {}

std::int64_t LayerRun::covered_rows() const noexcept { return std::min(rows(), attention_.rule.covered_prefix()); }

std::vector<std::string> LayerRun::unmet(Path path, std::int64_t rows) const {
  std::vector<std::string> reasons = unmet_requirements(path, attention_, 0, rows, true, device_);
  // A recorded selection is as wide as its longest row, where that has more keys than the rule promises. The processor
  // does not rely on the promise.
  const bool promises =
      attention_.rule.kind() == SelectionRule::Kind::lightning || attention_.rule.kind() == SelectionRule::Kind::kpool;
  const std::int64_t most = selection_.selection.index.dim(1);
  if (device_.cuda != nullptr && path == Path::topk_mqa && promises && most > attention_.rule.width()) {
    reasons.push_back(fmt::format("a recorded row names {} keys, and {} promises at most {}", most,
                                  attention_.rule.to_string(), attention_.rule.width()));
  }
  return reasons;
}

PathResult LayerRun::run(Path path, std::int64_t rows) const {
  Options options = options_;
  options.force = path;
  const std::vector<RequestSpec> batch{{rows, 0}};
  const PageTable table(batch, options.seed);
  stages_.begin(table, attention_.format, 0);
  std::vector<std::int64_t> positions(static_cast<std::size_t>(rows));
  std::iota(positions.begin(), positions.end(), 0);
  OracleCheck check(check_tolerance(options.compute), {std::move(positions)});
  OutputErrors errors;
  const std::int64_t steps = query_steps(batch, options.prefill_chunk);
  Progress progress(fmt::format("layer {} {}", recorded_.layer, name_of(path)), steps);
  for (std::int64_t s = 0; s < steps; ++s) {
    const Step step(table, query_pieces(batch, options.prefill_chunk, s));
    run_step(step, options, check, errors);
    progress.advance(1);
  }
  PathResult result;
  result.path = path;
  result.rows_run = rows;
  result.recorded = {errors.rows(), errors.relative(), errors.max_row(), {}};
  if (compares_with_recording(options.compute, attention_.format)) {
    result.recorded.tolerance = float32_tolerance(check.score_norm());
  }
  result.oracle_rows = check.rows();
  result.attention_error = check.worst_row().error;
  result.lse_error = check.worst_lse().error;
  result.score_norm = check.score_norm();
  result.tolerance = check.tolerance();
  return result;
}

/// A path that the user did not force cannot run for lack of workspace only: its other requirements are met.
Plan LayerRun::plan_path(const Batch& batch, const Options& options) const {
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

void LayerRun::run_step(const Step& step, const Options& options, OracleCheck& check, OutputErrors& errors) const {
  const Piece& piece = step.pieces().front();
  const Plan plan = plan_path(step.batch(), options);
  stages_.open(step, hidden_.view().slice(piece.begin, piece.end));
  stages_.project(/*scoring=*/false);
  stages_.append();
  if (stage_errors_ != nullptr) {
    stage_errors_->add_appended(stages_.appended(), step);
  }
  stages_.use(rows_of(selection_.selection, piece));
  stages_.prepare(plan, /*with_lse=*/true);
  stages_.attend(plan);
  const AttendedStep attended = stages_.attended();
  check.add(attention_, attended.weights, attended.inputs, step, attended.out, attended.lse, options.threads);
  stages_.output();
  const ConstAnyView out = stages_.out();
  if (stage_errors_ != nullptr) {
    stage_errors_->add_output(attended.out, out, options.threads);
  }
  // A row whose own selection is another has another answer, which the recording does not hold.
  errors.add(out, recorded_.output.view_as<float>().slice(piece.begin, piece.end), selection_.agrees, piece.begin);
  stages_.close();
}

}  // namespace headrace::app
