// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>

#include "headrace/layer.h"
#include "layer/random.h"
#include "layer/weight_specs.h"

namespace headrace {
namespace {

using layer::WeightRole;
using layer::WeightSpec;

constexpr double kNormSpread =
    0.1;  // of norm scales about 1, and of biases about 0: as a trained model has them, small
constexpr std::uint64_t kStreamsPerLayer = 64;  // a layer has fewer tensors

double spread_of(const WeightSpec& spec) {
  return spec.role == WeightRole::projection ? 1.0 / std::sqrt(static_cast<double>(spec.columns)) : kNormSpread;
}

void fill(const WeightSpec& spec, Tensor& tensor, std::uint64_t seed, std::uint64_t stream) {
  tensor = spec.columns == 0 ? Tensor(spec.dtype, {spec.rows}) : Tensor(spec.dtype, {spec.rows, spec.columns});
  layer::fill_normal(tensor.view(), seed, stream, spread_of(spec), 0);
  if (spec.role == WeightRole::norm_scale) {
    const auto scale = tensor.view_as<float>();
    for (std::int64_t i = 0; i < spec.rows; ++i) {
      scale(i) += 1.0F;
    }
  }
}

}  // namespace

LayerWeights random_layer_weights(const ModelConfig& config, std::int64_t layer, DType compute, std::uint64_t seed) {
  LayerWeights weights;
  if (layer::has_indexer(config, layer)) {
    weights.indexer.emplace();
  }
  std::uint64_t stream = static_cast<std::uint64_t>(layer) * kStreamsPerLayer;
  for (const WeightSpec& spec : layer::weight_specs(config, layer, compute)) {
    fill(spec, spec.of(weights), seed, stream++);
  }
  return weights;
}

}  // namespace headrace
