// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headrace/layer.h"

namespace headrace::layer::cuda {

/// Throws Error naming the weight that is missing, unexpected, of another shape or dtype than bfloat16 layers have, or
/// whose rows or columns the products of a GPU cannot take. Needs no GPU.
void check_weights(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights);

}  // namespace headrace::layer::cuda
