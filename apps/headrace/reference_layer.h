// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headrace/recording.h"
#include "headrace/selection.h"
#include "headrace/tensor.h"
#include "model_source.h"
#include "options.h"

namespace headrace::app {

/// A recorded layer as the processor computes it, with a cache of the compute dtype, whatever --dtype and
/// --kv-cache-dtype say.
struct ReferenceLayer {
  Tensor q;         ///< [S, H, nope + rope]
  Tensor latent;    ///< [S, R]
  Tensor rope_key;  ///< [S, rope]; empty for NoPE
  Tensor output;    ///< [S, hidden]
  Tensor o_proj;    ///< [hidden, H * v], its weights
};

/// @param selection  the recorded one; empty where the layer has none
[[nodiscard]] ReferenceLayer run_reference(const ModelSource& model, const RecordedLayer& recorded,
                                           const Selection& selection, DType compute, const Options& options);

}  // namespace headrace::app
