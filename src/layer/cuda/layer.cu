// SPDX-License-Identifier: Apache-2.0
//
// The stages of Layer (src/layer/layer.cpp, which this follows line by line) on a GPU: products by cuBLASLt, the rest
// by row_steps.cu, the cache, the indexer and attend.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "device/cuda/current.h"
#include "device/cuda/device.h"
#include "headrace/cuda_indexer.h"
#include "headrace/cuda_layer.h"
#include "headrace/error.h"
#include "layer/cuda/indexer.h"
#include "layer/cuda/requirements.h"
#include "layer/cuda/row_steps.h"
#include "layer/cuda/scratch.h"
#include "layer/cuda/weights.h"
#include "layer/rope.h"
#include "selection/cuda/index_cache.h"
#include "selection/cuda/select.h"

namespace headrace {

namespace layer::cuda {

/// What a layer has on its GPU.
struct Resident {
  Resident(ModelConfig config, std::int64_t number, const LayerWeights& weights, std::shared_ptr<CudaDevice> device)
      : config(std::move(config)),
        number(number),
        device(std::move(device)),
        weights(this->device->state().products, weights),
        frequencies(rope_frequencies(this->config.rope)),
        inverse(frequencies.inverse),
        product_memory(this->weights.product_bytes()) {
    this->weights.warm_up(Stream{});
    load_row_steps();
    if (this->weights.indexer) {
      selection::cuda::load_append_index_keys();
      selection::cuda::load_select();
    }
  }

  ModelConfig config;
  std::int64_t number;
  std::shared_ptr<CudaDevice> device;
  WeightsOnDevice weights;
  RopeFrequencies frequencies;
  device::cuda::DeviceArray<double> inverse;
  device::cuda::DeviceBuffer product_memory;  ///< what products take while they run

  [[nodiscard]] std::span<std::byte> for_products() const noexcept {
    return {product_memory.data(), static_cast<std::size_t>(product_memory.size_bytes())};
  }

  Scratch low_rank;
  Scratch q;
  Scratch kv_a;
  Scratch rope_table;
  Scratch index_key;
  Scratch index_gate;
  Scratch index_query;
  Scratch head_weight_product;
  Scratch index_weight;
  Scratch attended;
  Selector selector;
};

}  // namespace layer::cuda

struct CudaLayer::State : layer::cuda::Resident {
  using Resident::Resident;
};

namespace {

/// The same memory as [T, everything else].
AnyView flat(const View<bfloat16>& view) {
  return View<bfloat16>(view.data(), {view.dim(0), view.dim(1) * view.dim(2)});
}

/// Columns [begin, end) of each row.
View<bfloat16> columns(const View<bfloat16>& rows, std::int64_t begin, std::int64_t end) {
  return {rows.data() + begin, 2, {rows.dim(0), end - begin}, {rows.stride(0), 1}};
}

/// Dims [begin, end) of each head of [T, heads, D], or of each row of [T, D] as if it were one head.
View<bfloat16> head_dims(const View<bfloat16>& view, std::int64_t begin, std::int64_t end) {
  const bool heads = view.rank() == 3;
  return {view.data() + begin,
          3,
          {view.dim(0), heads ? view.dim(1) : 1, end - begin},
          {view.stride(0), heads ? view.stride(1) : 0, 1}};
}

/// One step's projections: the inputs that all of them share.
class Projection {
 public:
  Projection(layer::cuda::Resident& state, View<const bfloat16> hidden, View<const std::int32_t> positions,
             Stream stream)
      : state_(state), hidden_(hidden), tokens_(hidden.dim(0)), stream_(stream) {
    hidden.expect("hidden", {-1, state.config.hidden_size});
    positions.expect("positions", {tokens_});
    const std::int64_t pairs = state.config.rope.dim / 2;
    if (pairs > 0) {
      table_ = state.rope_table.take<float>({tokens_, pairs, 2}, stream);
      layer::cuda::rope_table(positions, View<const double>(state.inverse.data(), {pairs}),
                              state.frequencies.attention_factor, table_, stream);
    }
  }

  /// The latent, the rope key and the indexer's key and gate.
  void keys(CudaProjected& out) const {
    const Geometry& g = state_.config.geometry;
    const View<bfloat16> kv_a = state_.kv_a.take<bfloat16>({tokens_, g.latent_dim()}, stream_);
    state_.weights.kv_a_proj.run(hidden_, kv_a, state_.for_products(), stream_);
    const View<bfloat16> latent = columns(kv_a, 0, g.kv_lora_rank);
    layer::cuda::rms_norm(latent, state_.weights.kv_a_norm.view_as<float>(), state_.config.kv_a_norm_epsilon, stream_);
    out.latent = latent;
    if (g.qk_rope_head_dim > 0) {
      const View<bfloat16> rope_key = columns(kv_a, g.kv_lora_rank, g.latent_dim());
      layer::cuda::rotate(head_dims(rope_key, 0, g.qk_rope_head_dim), table_, state_.config.rope.interleave, stream_);
      out.rope_key = rope_key;
    }
    if (state_.weights.indexer) {
      index_keys(*state_.weights.indexer, *state_.config.indexer, out);
    }
  }

  /// The queries, and with `scoring` what the indexer asks with.
  void queries(bool scoring, CudaProjected& out) const {
    const Geometry& g = state_.config.geometry;
    const View<bfloat16> q = state_.q.take<bfloat16>({tokens_, g.num_heads, g.qk_head_dim()}, stream_);
    if (state_.weights.q_a_proj) {
      const View<bfloat16> low_rank = state_.low_rank.take<bfloat16>({tokens_, *state_.config.q_lora_rank}, stream_);
      state_.weights.q_a_proj->run(hidden_, low_rank, state_.for_products(), stream_);
      layer::cuda::rms_norm(low_rank, state_.weights.q_a_norm.view_as<float>(), state_.config.q_a_norm_epsilon,
                            stream_);
      state_.weights.q_b_proj->run(low_rank, flat(q), state_.for_products(), stream_);
      if (scoring && state_.weights.indexer) {
        index_queries(*state_.weights.indexer, *state_.config.indexer, low_rank, out);
      }
    } else {
      state_.weights.q_proj->run(hidden_, flat(q), state_.for_products(), stream_);
    }
    if (g.qk_rope_head_dim > 0) {
      layer::cuda::rotate(head_dims(q, g.qk_nope_head_dim, g.qk_head_dim()), table_, state_.config.rope.interleave,
                          stream_);
    }
    out.q = q;
  }

 private:
  void index_keys(const layer::cuda::IndexerOnDevice& weights, const IndexerGeometry& indexer,
                  CudaProjected& out) const {
    const View<bfloat16> key = state_.index_key.take<bfloat16>({tokens_, indexer.head_dim}, stream_);
    weights.wk.run(hidden_, key, state_.for_products(), stream_);
    layer::cuda::layer_norm(key, weights.k_norm_weight.view_as<float>(), weights.k_norm_bias.view_as<float>(),
                            indexer.key_norm_epsilon, stream_);
    if (indexer.rope_dim > 0) {
      layer::cuda::rotate(head_dims(key, 0, indexer.rope_dim), table_, indexer.rope_interleave, stream_);
    }
    out.index_key = key;
    if (indexer.kpool) {
      const View<bfloat16> gate = state_.index_gate.take<bfloat16>({tokens_, indexer.head_dim}, stream_);
      weights.gate->run(hidden_, gate, state_.for_products(), stream_);
      out.index_gate = gate;
    }
  }

  void index_queries(const layer::cuda::IndexerOnDevice& weights, const IndexerGeometry& indexer,
                     View<const bfloat16> low_rank, CudaProjected& out) const {
    const View<bfloat16> query =
        state_.index_query.take<bfloat16>({tokens_, indexer.num_heads, indexer.head_dim}, stream_);
    weights.wq_b.run(low_rank, flat(query), state_.for_products(), stream_);
    if (indexer.rope_dim > 0) {
      layer::cuda::rotate(head_dims(query, 0, indexer.rope_dim), table_, indexer.rope_interleave, stream_);
    }
    out.index_query = query;
    const View<float> product =
        state_.head_weight_product.take<float>({tokens_, weights.weights_proj.columns()}, stream_);
    weights.weights_proj.run(hidden_, product, state_.for_products(), stream_);
    const View<float> weight = state_.index_weight.take<float>({tokens_, indexer.num_heads}, stream_);
    const double factor = 1.0 / std::sqrt(static_cast<double>(indexer.num_heads * indexer.head_dim));
    layer::cuda::scale_head_weights(product, factor, weight, stream_);
    out.index_weight = weight;
  }

  layer::cuda::Resident& state_;
  View<const bfloat16> hidden_;
  std::int64_t tokens_;
  Stream stream_;
  View<float> table_;
};

bool needs_selection(const Plan& plan) {
  return std::any_of(plan.requests().begin(), plan.requests().end(),
                     [](const RequestPlan& request) { return !request.skip_scoring; });
}

/// Everything that can be refused is, before anything goes to the GPU.
void validate(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights,
              const std::shared_ptr<CudaDevice>& device) {
  config.geometry.validate();
  layer::cuda::check_weights(config, layer, weights);
  if (device == nullptr) {
    throw Error("device", "a GPU", "none");
  }
}

}  // namespace

CudaLayer::CudaLayer(ModelConfig config, std::int64_t layer, const LayerWeights& weights,
                     std::shared_ptr<CudaDevice> device) {
  validate(config, layer, weights, device);
  const device::cuda::CurrentDevice current(device->ordinal());
  state_ = std::make_unique<State>(std::move(config), layer, weights, std::move(device));
}

CudaLayer::~CudaLayer() = default;

const ModelConfig& CudaLayer::config() const noexcept { return state_->config; }

const std::shared_ptr<CudaDevice>& CudaLayer::device() const noexcept { return state_->device; }

bool CudaLayer::scores() const noexcept { return state_->weights.indexer.has_value(); }

Weights CudaLayer::attention_weights() const {
  return {state_->weights.kv_b_proj.view(), state_->weights.sink.view_as<float>()};
}

Attention CudaLayer::attention(CacheFormat format) const {
  return {config().geometry, config().selection_rule(state_->number), config().softmax_scale, DType::bfloat16, format};
}

CudaProjected CudaLayer::project(View<const bfloat16> hidden, View<const std::int32_t> positions, Stream stream,
                                 bool scoring) {
  const device::cuda::CurrentDevice current(state_->device->ordinal());
  const Projection projection(*state_, hidden, positions, stream);
  CudaProjected result;
  projection.keys(result);
  projection.queries(scoring, result);
  return result;
}

CudaProjected CudaLayer::project_keys(View<const bfloat16> hidden, View<const std::int32_t> positions, Stream stream) {
  const device::cuda::CurrentDevice current(state_->device->ordinal());
  CudaProjected result;
  Projection(*state_, hidden, positions, stream).keys(result);
  return result;
}

void CudaLayer::append(const CudaProjected& projected, const LayerCaches& caches, CacheFormat format,
                       const Requests& requests, View<const std::int64_t> slot_mapping, Stream stream) const {
  const device::cuda::CurrentDevice current(state_->device->ordinal());
  headrace::append(config().geometry, format, caches.latent, projected.latent, projected.rope_key, slot_mapping,
                   *state_->device, stream);
  if (scores()) {
    append_index_keys(*config().indexer, caches.index, projected.index_key, projected.index_gate,
                      state_->weights.indexer->offset_bias.view_as<float>(), requests, slot_mapping, *state_->device,
                      stream);
  }
}

Selection CudaLayer::select(const Plan& plan, const CudaProjected& projected, const CacheView& index_cache,
                            const Requests& requests, std::int64_t workspace_bytes, Stream stream) {
  const device::cuda::CurrentDevice current(state_->device->ordinal());
  if (!needs_selection(plan)) {
    return {};
  }
  if (!scores()) {
    throw Error("selection of layer " + std::to_string(state_->number),
                "the one of layer " + std::to_string(config().selection_source(state_->number)) +
                    ", for this layer has no indexer",
                "none");
  }
  if (projected.index_query.empty()) {
    throw Error("projected", "index queries, for some rows read the selection", "none");
  }
  std::int64_t longest = 0;
  for (const RequestPlan& request : plan.requests()) {
    longest = std::max(longest, request.context_len + request.query_len);
  }
  return state_->selector.select(*config().indexer, projected, index_cache, requests, longest, workspace_bytes,
                                 *state_->device, stream);
}

void CudaLayer::output(View<const bfloat16> attended, View<bfloat16> out, Stream stream) const {
  const device::cuda::CurrentDevice current(state_->device->ordinal());
  const Geometry& g = config().geometry;
  attended.expect("attended", {-1, g.num_heads, g.v_head_dim});
  if (attended.stride(2) != 1 || attended.stride(1) != g.v_head_dim) {
    throw Error("attended", "heads side by side",
                "strides " + std::to_string(attended.stride(1)) + " and " + std::to_string(attended.stride(2)));
  }
  out.expect("out", {attended.dim(0), config().hidden_size});
  const View<const bfloat16> rows(attended.data(), 2, {attended.dim(0), g.num_heads * g.v_head_dim},
                                  {attended.stride(0), 1});
  state_->weights.o_proj.run(rows, out, state_->for_products(), stream);
}

void CudaLayer::forward(const Plan& plan, View<const bfloat16> hidden, View<const std::int32_t> positions,
                        const LayerCaches& caches, const Requests& requests, View<const std::int64_t> slot_mapping,
                        std::optional<Selection> shared, std::span<std::byte> workspace, View<bfloat16> out,
                        Stream stream, bool selection_kept) {
  const device::cuda::CurrentDevice current(state_->device->ordinal());
  const bool scoring = !shared && needs_selection(plan);
  if (scoring && selection_kept) {
    throw Error("selection_kept", "false where the layer makes a selection of its own", "true");
  }
  const CudaProjected projected = project(hidden, positions, stream, scoring);
  append(projected, caches, plan.attention().format, requests, slot_mapping, stream);
  Selection own;
  if (scoring) {
    own = select(plan, projected, caches.index, requests, static_cast<std::int64_t>(workspace.size()), stream);
  }
  const Geometry& g = config().geometry;
  const View<bfloat16> attended = state_->attended.take<bfloat16>({hidden.dim(0), g.num_heads, g.v_head_dim}, stream);
  attend(plan, attention_weights(), {projected.q, caches.latent, requests, shared.value_or(own), selection_kept},
         {attended, {}}, workspace, stream);
  output(attended, out, stream);
}

}  // namespace headrace
