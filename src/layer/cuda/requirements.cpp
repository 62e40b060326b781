// SPDX-License-Identifier: Apache-2.0
#include "layer/cuda/requirements.h"

#include <fmt/format.h>

#include <string>

#include "headrace/error.h"
#include "layer/weight_specs.h"

namespace headrace::layer::cuda {
namespace {

/// What products (device::cuda::ProductShape) and norms take in a dimension.
constexpr std::int64_t kMultiple = 8;

}  // namespace

void check_weights(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights) {
  layer::check_weights(config, layer, DType::bfloat16, weights);
  for (const WeightSpec& spec : weight_specs(config, layer, DType::bfloat16)) {
    // Rows of zeros make up for a number of head weights that does not fit; other results are used as they lie.
    const bool rows_fit = spec.rows % kMultiple == 0 || spec.in_indexer == &IndexerWeights::weights_proj;
    if (spec.role == WeightRole::projection && !(rows_fit && spec.columns % kMultiple == 0)) {
      throw UnsupportedError(
          std::string(spec.name),
          fmt::format("rows and columns that are multiples of {}, which products on a GPU need", kMultiple),
          fmt::format("[{}, {}]", spec.rows, spec.columns));
    }
  }
}

}  // namespace headrace::layer::cuda
