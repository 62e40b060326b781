// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "headrace/attention.h"
#include "headrace/cuda.h"
#include "headrace/export.h"
#include "headrace/layer.h"
#include "headrace/model.h"
#include "headrace/plan.h"
#include "headrace/requests.h"
#include "headrace/selection.h"
#include "headrace/view.h"

namespace headrace {

/// What the projections make of a step's hidden states on a GPU, as struct Projected is on the processor. Views on
/// memory of the layer, until its next projection.
struct CudaProjected {
  View<const bfloat16> q;            ///< [T, H, nope + rope], rope applied
  View<const bfloat16> latent;       ///< [T, R], normalised; rows apart
  View<const bfloat16> rope_key;     ///< [T, rope], rope applied; rows apart; empty for NoPE
  View<const bfloat16> index_query;  ///< [T, heads, D], rope applied; empty on layers that do not score
  View<const float> index_weight;    ///< [T, heads], constant factors included
  View<const bfloat16> index_key;    ///< [T, D], LayerNorm and rope applied
  View<const bfloat16> index_gate;   ///< [T, D], k-pool only
};

/// One sparse-MLA attention layer on a GPU, hidden -> hidden, in the stages of Layer and with their results, in
/// bfloat16. Every view is on the GPU's memory, but the structures that hold views are on the host. Calls queue work on
/// a stream and return.
///
/// The layer keeps the weights on the GPU, and the memory of its intermediate results, which grows with the largest
/// step: a step larger than all before it allocates, and waits for the stream to do so. One layer serves one stream at
/// a time.
class HEADRACE_EXPORT CudaLayer {
 public:
  /// Copies the weights to the GPU, chooses the algorithms of the products and loads them, and waits.
  /// @param layer    its number in the model
  /// @param weights  in bfloat16, on the host; not needed afterwards
  /// @throws Error when a weight does not have the shape or dtype that `config` asks for, a dimension is no multiple of
  ///         8, the layer is not MLA, or the GPU has not enough memory
  CudaLayer(ModelConfig config, std::int64_t layer, const LayerWeights& weights, std::shared_ptr<CudaDevice> device);
  ~CudaLayer();
  CudaLayer(const CudaLayer&) = delete;
  CudaLayer& operator=(const CudaLayer&) = delete;

  [[nodiscard]] const ModelConfig& config() const noexcept;
  [[nodiscard]] const std::shared_ptr<CudaDevice>& device() const noexcept;
  [[nodiscard]] Weights attention_weights() const;
  /// Whether this layer has its own indexer.
  [[nodiscard]] bool scores() const noexcept;
  /// The attention this layer runs over a cache of the given format.
  [[nodiscard]] Attention attention(CacheFormat format) const;

  /// hidden [T, hidden], positions [T] in the request -> everything the later stages need.
  /// @param hidden   rows contiguous, at multiples of 16 bytes
  /// @param scoring  false where no row reads this layer's own selection: leaves index_query and index_weight empty
  [[nodiscard]] CudaProjected project(View<const bfloat16> hidden, View<const std::int32_t> positions, Stream stream,
                                      bool scoring = true);
  /// The same for tokens whose queries nobody asks for (context): leaves q, index_query and index_weight empty.
  [[nodiscard]] CudaProjected project_keys(View<const bfloat16> hidden, View<const std::int32_t> positions,
                                           Stream stream);
  /// Writes latents, rope keys and index keys to the caches. A slot outside a cache is skipped, as -1 is.
  void append(const CudaProjected& projected, const LayerCaches& caches, CacheFormat format, const Requests& requests,
              View<const std::int64_t> slot_mapping, Stream stream) const;
  /// Runs the indexer where the plan says that some rows read the selection, else gives an empty one. Rows that do not
  /// read it take every key that they see. Views on memory of the layer, until its next selection.
  /// @param workspace_bytes  what scores may take, or more where they need it; memory of the layer
  /// @throws Error when some rows do and this layer shares another layer's selection
  [[nodiscard]] Selection select(const Plan& plan, const CudaProjected& projected, const CacheView& index_cache,
                                 const Requests& requests, std::int64_t workspace_bytes, Stream stream);
  /// attended [T, H, v] -> out [T, hidden]; with tp > 1 a partial sum over the ranks.
  /// @param attended  heads side by side
  void output(View<const bfloat16> attended, View<bfloat16> out, Stream stream) const;

  /// All stages. `shared` is the selection of another layer, or the caller's own; empty to use this layer's indexer.
  /// `workspace` serves `attend`; see there for alignment and size.
  /// @param selection_kept  the caller's word on `shared`, as Inputs::selection_kept
  /// @throws Error when that word is given on a selection that this layer's indexer makes
  void forward(const Plan& plan, View<const bfloat16> hidden, View<const std::int32_t> positions,
               const LayerCaches& caches, const Requests& requests, View<const std::int64_t> slot_mapping,
               std::optional<Selection> shared, std::span<std::byte> workspace, View<bfloat16> out, Stream stream,
               bool selection_kept = false);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headrace
