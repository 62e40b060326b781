// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "headrace/recording.h"
#include "output_errors.h"
#include "stage_errors.h"
#include "stages.h"
#include "step.h"
#include "verify.h"

namespace headrace::app {

/// A selection for the whole prompt.
struct PromptSelection {
  Selection selection;
  std::vector<bool> agrees;  ///< per row, where it is our own: whether it is the recorded one
};

/// One recorded layer, ready to be run down any path.
class LayerRun {
 public:
  /// @param stage_errors  gets the errors of the stages around attention; null where they are not compared
  LayerRun(Stages& stages, const RecordedLayer& recorded, const PromptSelection& selection, const Options& options,
           const Device& device, StageErrors* stage_errors);

  [[nodiscard]] std::int64_t rows() const noexcept { return hidden_.dim(0); }
  [[nodiscard]] std::int64_t covered_rows() const noexcept;
  [[nodiscard]] std::vector<std::string> unmet(Path path, std::int64_t rows) const;

  /// Runs the first `rows` tokens of the prompt, in chunks as the options say, and compares each of them: a fault of
  /// one tile of one path is seen in few rows.
  [[nodiscard]] PathResult run(Path path, std::int64_t rows) const;

 private:
  [[nodiscard]] Plan plan_path(const Batch& batch, const Options& options) const;
  void run_step(const Step& step, const Options& options, OracleCheck& check, OutputErrors& errors) const;

  Stages& stages_;
  const RecordedLayer& recorded_;
  const PromptSelection& selection_;
  const Options& options_;
  const Device& device_;
  StageErrors* stage_errors_;
  Attention attention_;
  Tensor hidden_;
};

}  // namespace headrace::app
