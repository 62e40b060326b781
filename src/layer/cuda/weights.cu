// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "layer/cuda/weights.h"

namespace headrace::layer::cuda {
namespace {

using device::cuda::DeviceTensor;
using device::cuda::ProductLibrary;

/// What products take in a dimension (device::cuda::ProductShape).
constexpr std::int64_t kMultiple = 8;

DeviceTensor upload_padded(const ConstAnyView& weight) {
  const std::int64_t rows = (weight.dim(0) + kMultiple - 1) / kMultiple * kMultiple;
  if (rows == weight.dim(0)) {
    return DeviceTensor(weight);
  }
  Tensor padded(weight.dtype(), {rows, weight.dim(1)});
  const auto* from = static_cast<const std::byte*>(weight.data());
  std::copy_n(from, weight.dim(0) * weight.dim(1) * size_of(weight.dtype()), padded.data());
  return DeviceTensor(std::as_const(padded).view());
}

/// A view of an optional tensor; empty where there is none.
ConstAnyView view_of(const Tensor& tensor) { return tensor.empty() ? ConstAnyView() : tensor.view(); }

std::optional<Linear> linear_of(const ProductLibrary& library, const Tensor& weight) {
  if (weight.empty()) {
    return std::nullopt;
  }
  return std::optional<Linear>(std::in_place, library, weight.view());
}

}  // namespace

Linear::Linear(const ProductLibrary& library, const ConstAnyView& weight, DType out)
    : weight_(upload_padded(weight)),
      product_(library, {.columns = columns(), .inner = weight.dim(1), .b_transposed = true, .out = out}) {}

void Linear::run(View<const bfloat16> x, AnyView out, std::span<std::byte> workspace, Stream stream) const {
  const AnyView weight = weight_.view();
  product_.run(View<const bfloat16>(x.data(), 3, {x.dim(0), 1, x.dim(1)}, {x.stride(0), 0, x.stride(1)}),
               View<const bfloat16>(static_cast<const bfloat16*>(weight.data()), {1, weight.dim(0), weight.dim(1)}),
               AnyView(out.data(), out.dtype(), 3, {out.dim(0), 1, out.dim(1)}, {out.stride(0), 0, out.stride(1)}),
               workspace, stream);
}

IndexerOnDevice::IndexerOnDevice(const ProductLibrary& library, const IndexerWeights& weights)
    : wq_b(library, weights.wq_b.view()),
      wk(library, weights.wk.view()),
      weights_proj(library, weights.weights_proj.view(), DType::float32),
      gate(linear_of(library, weights.gate)),
      k_norm_weight(weights.k_norm_weight.view()),
      k_norm_bias(weights.k_norm_bias.view()),
      offset_bias(view_of(weights.offset_bias)) {}

WeightsOnDevice::WeightsOnDevice(const ProductLibrary& library, const LayerWeights& weights)
    : q_proj(linear_of(library, weights.q_proj)),
      q_a_proj(linear_of(library, weights.q_a_proj)),
      q_b_proj(linear_of(library, weights.q_b_proj)),
      kv_a_proj(library, weights.kv_a_proj_with_mqa.view()),
      o_proj(library, weights.o_proj.view()),
      q_a_norm(view_of(weights.q_a_norm)),
      kv_a_norm(weights.kv_a_norm.view()),
      kv_b_proj(weights.kv_b_proj.view()),
      sink(view_of(weights.sink)) {
  if (weights.indexer) {
    indexer.emplace(library, *weights.indexer);
  }
}

std::vector<const Linear*> WeightsOnDevice::products() const {
  std::vector<const Linear*> all{&kv_a_proj, &o_proj};
  for (const std::optional<Linear>* linear : {&q_proj, &q_a_proj, &q_b_proj}) {
    if (linear->has_value()) {
      all.push_back(&**linear);
    }
  }
  if (indexer) {
    all.insert(all.end(), {&indexer->wq_b, &indexer->wk, &indexer->weights_proj});
    if (indexer->gate) {
      all.push_back(&*indexer->gate);
    }
  }
  return all;
}

void WeightsOnDevice::warm_up(Stream stream) const {
  for (const Linear* linear : products()) {
    linear->warm_up(stream);
  }
}

std::int64_t WeightsOnDevice::product_bytes() const {
  std::int64_t most = 0;
  for (const Linear* linear : products()) {
    most = std::max(most, linear->product_bytes());
  }
  return most;
}

}  // namespace headrace::layer::cuda
