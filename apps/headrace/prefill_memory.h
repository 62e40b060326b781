// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headrace/plan.h"
#include "memory.h"
#include "model_source.h"
#include "options.h"

namespace headrace::app {

/// Context tokens whose keys are made at once.
inline constexpr std::int64_t kContextTokensAtOnce = 2048;

/// What decides how much memory a prefill takes.
inline constexpr const char* kMemoryOptions = "--batch, --tp or --prefill-chunk";

/// An upper bound of what a prefill allocates but for attention's workspace: weights, caches, selection, and the
/// tensors of the largest step.
[[nodiscard]] MemoryEstimate prefill_memory(const ModelSource& model, std::int64_t layer, const Attention& attention,
                                            const Options& options);

}  // namespace headrace::app
