// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "device/cuda/products.h"
#include "device/cuda/stream.h"
#include "device/cuda/tensor.h"
#include "headrace/layer.h"
#include "headrace/model.h"

namespace headrace::layer::cuda {

/// A checkpoint's weight on the GPU, one row an output, and its product.
class Linear {
 public:
  /// @param weight  [columns, inner] on the host; rows of zeros make up for columns that are no multiple of 8
  Linear(const device::cuda::ProductLibrary& library, const ConstAnyView& weight, DType out = DType::bfloat16);

  /// Columns of the product: those of the weight, rounded up to a multiple of 8.
  [[nodiscard]] std::int64_t columns() const noexcept { return weight_.view().dim(0); }
  void warm_up(Stream stream) const { product_.warm_up(stream); }
  /// out [T, columns()] = x [T, inner] times the weight.
  /// @param workspace  of at least product_bytes()
  void run(View<const bfloat16> x, AnyView out, std::span<std::byte> workspace, Stream stream) const;
  [[nodiscard]] std::int64_t product_bytes() const noexcept { return product_.workspace_bytes(); }

 private:
  device::cuda::DeviceTensor weight_;
  device::cuda::Product product_;
};

struct IndexerOnDevice {
  IndexerOnDevice(const device::cuda::ProductLibrary& library, const IndexerWeights& weights);

  Linear wq_b;
  Linear wk;
  Linear weights_proj;
  std::optional<Linear> gate;
  device::cuda::DeviceTensor k_norm_weight;
  device::cuda::DeviceTensor k_norm_bias;
  device::cuda::DeviceTensor offset_bias;
};

/// A layer's weights on the GPU, with the products they take part in.
struct WeightsOnDevice {
  WeightsOnDevice(const device::cuda::ProductLibrary& library, const LayerWeights& weights);

  std::optional<Linear> q_proj;  ///< instead of the next two
  std::optional<Linear> q_a_proj;
  std::optional<Linear> q_b_proj;
  Linear kv_a_proj;
  Linear o_proj;
  device::cuda::DeviceTensor q_a_norm;
  device::cuda::DeviceTensor kv_a_norm;
  device::cuda::DeviceTensor kv_b_proj;
  device::cuda::DeviceTensor sink;
  std::optional<IndexerOnDevice> indexer;

  /// Loads every algorithm; waits.
  void warm_up(Stream stream) const;
  /// Bytes of workspace that each product takes at most.
  [[nodiscard]] std::int64_t product_bytes() const;

 private:
  [[nodiscard]] std::vector<const Linear*> products() const;
};

}  // namespace headrace::layer::cuda
