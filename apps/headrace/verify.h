// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "headrace/plan.h"
#include "model_source.h"
#include "options.h"

namespace headrace::app {

/// Largest errors that pass. They depend on what rounds: nothing but float32, bfloat16 somewhere, or an fp8 cache,
/// which the recording did not have.
struct VerifyTolerance {
  double rel_error = 0.0;
  double max_row_error = 0.0;
  double lse_error = 0.0;
};
[[nodiscard]] VerifyTolerance verify_tolerance(DType compute, CacheFormat format);

/// The least selection match that passes. bfloat16 scores differ from the recorded float32 ones by more than a tie, and
/// then other keys win; a wrong rope or norm loses far more.
[[nodiscard]] double least_selection_match(DType compute);

/// One path's outputs beside the recorded ones.
struct PathResult {
  Path path = Path::topk_mqa;
  std::int64_t rows_run = 0;
  std::int64_t rows = 0;       ///< compared: all that were run but those whose own selection differs from the recorded
  double rel_error = 0.0;      ///< ||difference|| / ||recorded||, over the whole output
  double max_row_error = 0.0;  ///< the same of the worst single token
  double lse_error = 0.0;      ///< against the float64 oracle on the same cache, for recordings hold no LSE
  VerifyTolerance tolerance;

  [[nodiscard]] bool pass() const noexcept {
    return rows > 0 && rel_error <= tolerance.rel_error && max_row_error <= tolerance.max_row_error &&
           lse_error <= tolerance.lse_error;
  }
};

/// A path that cannot serve the whole prompt.
struct SkippedPath {
  Path path = Path::topk_mqa;
  std::vector<std::string> unmet;
  std::optional<PathResult> covered_prefix;  ///< the prompt's first rows, where it can serve those
};

struct LayerResult {
  std::int64_t layer = 0;
  std::optional<double> selection_match;  ///< absent where another layer's selection, or the recorded one, is used
  std::optional<std::int64_t> ties;
  bool selection_pass = true;  ///< whether the match is at least least_selection_match()
  std::vector<PathResult> paths;
  std::vector<SkippedPath> skipped;

  [[nodiscard]] bool pass() const noexcept;
  /// No path was run on the whole prompt, because the forced one cannot serve it; what was run passes.
  [[nodiscard]] bool cannot_run() const noexcept;

 private:
  [[nodiscard]] bool all_that_ran_pass() const noexcept;
};

/// Runs every recorded layer (or the one of --layer) down every path (or the forced one).
/// @throws Error naming both for a recording that does not fit the model
[[nodiscard]] std::vector<LayerResult> verify(const ModelSource& model, const std::filesystem::path& recording,
                                              const Options& options);

}  // namespace headrace::app
