// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "headrace/indexer.h"

/// What is behind `select` and `score_rows` on a GPU (headrace/cuda_indexer.h).
namespace headrace::selection::cuda {

/// Why the score kernel cannot serve an indexer; empty when it can.
[[nodiscard]] std::vector<std::string> unmet_requirements(const IndexerGeometry& indexer);

/// Loads the kernels onto the current device, so that no selection is the first to wait for it. @throws Error
void load_select();

}  // namespace headrace::selection::cuda
