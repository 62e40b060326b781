// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "headrace/layer.h"

namespace headrace::layer {

enum class WeightRole : std::uint8_t { projection, norm_scale, bias };

/// One tensor of a layer: where LayerWeights keeps it and what the configuration says it must be.
struct WeightSpec {
  std::string_view name;  ///< as errors call it: "q_a_proj", "indexer.wk"
  WeightRole role = WeightRole::projection;
  DType dtype = DType::float32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;  ///< 0 for a vector
  Tensor LayerWeights::*in_layer = nullptr;
  Tensor IndexerWeights::*in_indexer = nullptr;  ///< set instead of `in_layer` for the indexer's

  /// The tensor; an indexer's only when the layer has one.
  [[nodiscard]] Tensor& of(LayerWeights& weights) const;
  [[nodiscard]] const Tensor& of(const LayerWeights& weights) const;
};

/// Whether a layer of this configuration has an indexer of its own.
[[nodiscard]] bool has_indexer(const ModelConfig& config, std::int64_t layer);

/// Every tensor that a layer must have, its indexer's among them where has_indexer(); in a fixed order.
/// @throws Error when the layer is not MLA or does not exist
[[nodiscard]] std::vector<WeightSpec> weight_specs(const ModelConfig& config, std::int64_t layer, DType compute);

/// Throws Error naming the weight that is missing, unexpected, or of another shape or dtype.
void check_weights(const ModelConfig& config, std::int64_t layer, DType compute, const LayerWeights& weights);

}  // namespace headrace::layer
