// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "headrace/plan.h"
#include "headrace/recording.h"
#include "model_source.h"
#include "options.h"
#include "recorded_selection.h"
#include "stage_errors.h"
#include "stages.h"

namespace headrace::app {

/// Largest errors against the recorded output that pass.
struct RecordedTolerance {
  double rel_error = 0.0;
  double max_row_error = 0.0;
};

/// Of a layer in float32 with a float32 cache. No more than 3e-4 and 1e-3, however large the scores are.
/// @param score_norm  see OracleCheck::score_norm()
[[nodiscard]] RecordedTolerance float32_tolerance(double score_norm) noexcept;

/// Whether nothing rounds but float32, so that a path's own output can be held to the recorded one. Elsewhere the data
/// decide how far right outputs are from the recorded ones: the layer is then compared with the recording in float32,
/// and this dtype and format with that layer, stage by stage.
[[nodiscard]] constexpr bool compares_with_recording(DType compute, CacheFormat format) noexcept {
  return compute == DType::float32 && format == CacheFormat::float32;
}

/// The least selection match that passes. bfloat16 scores differ from the recorded float32 ones by more than a tie, and
/// then other keys win; a wrong rope or norm loses far more of the rows that leave something to select.
[[nodiscard]] double least_selection_match(DType compute);

/// Errors against what a recording holds.
struct RecordedErrors {
  std::int64_t rows = 0;
  double rel_error = 0.0;                      ///< ||difference|| / ||recorded||, over the whole output
  double max_row_error = 0.0;                  ///< the same of the worst single token
  std::optional<RecordedTolerance> tolerance;  ///< absent: for information

  [[nodiscard]] bool pass() const noexcept {
    return !tolerance || (rows > 0 && rel_error <= tolerance->rel_error && max_row_error <= tolerance->max_row_error);
  }
};

/// One path's outputs.
struct PathResult {
  Path path = Path::topk_mqa;
  std::int64_t rows_run = 0;
  RecordedErrors recorded;  ///< of all rows but those whose own selection differs from the recorded one
  /// Attention against the float64 oracle on the same queries, cache bytes and selection.
  std::int64_t oracle_rows = 0;
  double attention_error = 0.0;  ///< of the worst row, divided by its rounding_allowance()
  double lse_error = 0.0;        ///< likewise
  double score_norm = 0.0;       ///< see OracleCheck::score_norm()
  CheckTolerance tolerance;

  [[nodiscard]] bool pass() const noexcept {
    return recorded.pass() && oracle_rows > 0 && attention_error <= tolerance.row && lse_error <= tolerance.lse;
  }
};

/// A path that cannot serve the whole prompt.
struct SkippedPath {
  Path path = Path::topk_mqa;
  std::vector<std::string> unmet;
  std::optional<PathResult> covered_prefix;  ///< the prompt's first rows, where it can serve those
};

/// What is compared beside the paths where bfloat16 or an fp8 cache rounds.
struct RoundingChecks {
  RecordedErrors float32_layer;  ///< the layer in float32 against the recording
  double queries = 0.0;          ///< see StageErrors
  double latents = 0.0;
  double output = 0.0;
  double tolerance = 0.0;             ///< of these three
  std::int64_t wrong_cache_rows = 0;  ///< see StageErrors; none passes
  std::optional<ScaleEffect> scale;   ///< of an fp8 cache

  [[nodiscard]] bool pass() const noexcept {
    return float32_layer.pass() && queries <= tolerance && latents <= tolerance && output <= tolerance &&
           wrong_cache_rows == 0 && (!scale || scale->pass());
  }
};

struct LayerResult {
  std::int64_t layer = 0;
  std::optional<SelectionMatch> match;  ///< absent where another layer's selection, or the recorded one, is used
  bool selection_pass = true;  ///< see SelectionMatch, and whether its share is at least least_selection_match()
  NotedRows wide_rows;  ///< of the recorded selection that was used: they select more keys than the rule lets them
  std::optional<NotedRows> differs_from_source;  ///< where it is the layer's own and another layer scores for it: rows
  std::optional<std::int64_t> rows_of_source;  ///< of that layer's selection, where they are too many or few to compare
  bool recorded_in_bfloat16 = false;           ///< every value of the recorded output is one of bfloat16
  std::vector<PathResult> paths;
  std::vector<SkippedPath> skipped;
  std::optional<RoundingChecks> rounding;

  [[nodiscard]] bool pass() const noexcept;
  /// No path was run on the whole prompt, because the forced one cannot serve it; what was run passes.
  [[nodiscard]] bool cannot_run() const noexcept;

 private:
  [[nodiscard]] bool all_that_ran_pass() const noexcept;
};

/// Makes the stages of a layer: make_stages, or something that tests put around it.
using StagesMaker =
    std::function<std::unique_ptr<Stages>(const ModelSource&, std::int64_t layer, const Options&, const Device&)>;

/// Runs every recorded layer (or the one of --layer) down every path (or the forced one).
/// @param file  how errors call the recording
/// @throws Error naming both for a recording that does not fit the model
[[nodiscard]] std::vector<LayerResult> verify(const ModelSource& model, const std::vector<RecordedLayer>& recording,
                                              const std::filesystem::path& file, const Options& options,
                                              const StagesMaker& make = make_stages);

[[nodiscard]] bool all_pass(const std::vector<LayerResult>& layers) noexcept;

}  // namespace headrace::app
