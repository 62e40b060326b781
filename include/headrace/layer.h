// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "headrace/attention.h"
#include "headrace/export.h"
#include "headrace/indexer.h"
#include "headrace/model.h"
#include "headrace/plan.h"
#include "headrace/tensor.h"

namespace headrace {

/// An indexer's weights in the compute dtype. Names are those of the checkpoints.
struct IndexerWeights {
  Tensor wq_b;           ///< [heads * D, q_lora_rank]
  Tensor wk;             ///< [D, hidden]
  Tensor k_norm_weight;  ///< [D] float32
  Tensor k_norm_bias;    ///< [D] float32
  Tensor weights_proj;   ///< [heads, hidden]
  Tensor offset_bias;    ///< k-pool: [P, D] float32 (index_kpool_compress_ape)
  Tensor gate;           ///< k-pool: [D, hidden] (index_kpool_compress_gate)
};

/// The weights of one layer on one rank: the heads' rows of q and kv_b, the heads' columns of o.
struct LayerWeights {
  Tensor q_proj;                          ///< [H * (nope + rope), hidden], only without q_lora_rank
  Tensor q_a_proj;                        ///< [q_lora_rank, hidden]
  Tensor q_a_norm;                        ///< [q_lora_rank] float32
  Tensor q_b_proj;                        ///< [H * (nope + rope), q_lora_rank]
  Tensor kv_a_proj_with_mqa;              ///< [R + rope, hidden]
  Tensor kv_a_norm;                       ///< [R] float32
  Tensor kv_b_proj;                       ///< [H * (nope + v), R]
  Tensor o_proj;                          ///< [hidden, H * v]
  Tensor sink;                            ///< [H] float32 or empty
  std::optional<IndexerWeights> indexer;  ///< layers that score
};

/// Loads a layer from a Hugging Face checkpoint folder (model.safetensors, or the shards of
/// model.safetensors.index.json), memory-mapped; only this layer's tensors are touched.
/// bf16, f16, f32 and e4m3 are converted to `compute`. e4m3 has a factor for each block of 128 x 128, named
/// `weight_scale_inv` or `weight_scale`, [ceil(rows / 128), ceil(columns / 128)] of f32, bf16, f16 or e8m0. One factor
/// for the tensor or one a row is refused, and so are both names with different factors.
/// @param config  load_model_config(folder), sharded for tensor parallelism
/// @param rank    in [0, config.tp)
/// @throws Error naming the tensor that is missing, of another shape or dtype, or the file that is damaged
[[nodiscard]] HEADRACE_EXPORT LayerWeights load_layer_weights(const std::filesystem::path& folder,
                                                              const ModelConfig& config, std::int64_t layer,
                                                              std::int64_t rank, DType compute);

/// Seeded random weights of the right shapes: normal with standard deviation 1/sqrt(fan-in), norms about 1. The same
/// seed gives the same weights on every machine and for every number of threads.
[[nodiscard]] HEADRACE_EXPORT LayerWeights random_layer_weights(const ModelConfig& config, std::int64_t layer,
                                                                DType compute, std::uint64_t seed);

/// What the projections make of a step's hidden states; all in the compute dtype unless noted.
struct Projected {
  Tensor q;             ///< [T, H, nope + rope], rope applied
  Tensor latent;        ///< [T, R], normalised
  Tensor rope_key;      ///< [T, rope], rope applied; empty for NoPE
  Tensor index_query;   ///< [T, heads, D], rope applied; empty on layers that do not score
  Tensor index_weight;  ///< [T, heads] float32, constant factors included
  Tensor index_key;     ///< [T, D], LayerNorm and rope applied
  Tensor index_gate;    ///< [T, D], k-pool only
};

/// A selection with its memory.
struct HEADRACE_EXPORT SelectionBuffer {
  Tensor index;  ///< [T, width] int32
  Tensor count;  ///< [T] int32

  [[nodiscard]] Selection selection() const;
};

/// The caches of one layer; the indexer's is unused on layers that do not score.
struct LayerCaches {
  MutableCacheView latent;
  MutableCacheView index;
};

/// One sparse-MLA attention layer, hidden -> hidden, in stages that can be run, timed and replaced one by one.
/// Immutable after construction; several threads may run several steps at once.
class HEADRACE_EXPORT Layer {
 public:
  /// @param layer  its number in the model
  /// @throws Error when a weight does not have the shape or dtype that `config` asks for, or the layer is not MLA
  Layer(ModelConfig config, std::int64_t layer, LayerWeights weights, DType compute, int threads = 0);

  [[nodiscard]] const ModelConfig& config() const noexcept { return config_; }
  [[nodiscard]] DType compute() const noexcept { return compute_; }
  [[nodiscard]] Weights attention_weights() const;
  [[nodiscard]] const LayerWeights& weights() const noexcept { return weights_; }
  /// Whether this layer has its own indexer.
  [[nodiscard]] bool scores() const noexcept { return weights_.indexer.has_value(); }
  /// The attention this layer runs over a cache of the given format.
  [[nodiscard]] Attention attention(CacheFormat format) const;

  /// hidden [T, hidden] compute dtype, positions [T] in the request -> everything the later stages need.
  /// @param scoring  false where no row reads this layer's own selection: leaves index_query and index_weight empty
  [[nodiscard]] Projected project(ConstAnyView hidden, View<const std::int32_t> positions, bool scoring = true) const;
  /// The same for tokens whose queries nobody asks for (context): leaves q, index_query and index_weight empty.
  [[nodiscard]] Projected project_keys(ConstAnyView hidden, View<const std::int32_t> positions) const;
  /// Writes latents, rope keys and index keys to the caches.
  void append(const Projected& projected, const LayerCaches& caches, CacheFormat format, const Requests& requests,
              View<const std::int64_t> slot_mapping) const;
  /// Runs the indexer for the rows that the plan says read the selection; an empty buffer where no row does.
  /// @throws Error when some do and this layer shares another layer's selection
  [[nodiscard]] SelectionBuffer select(const Plan& plan, const Projected& projected, const CacheView& index_cache,
                                       const Requests& requests, std::int64_t workspace_bytes) const;
  /// attended [T, H, v] compute dtype -> [T, hidden] compute dtype; with tp > 1 a partial sum over the ranks.
  [[nodiscard]] Tensor output(ConstAnyView attended) const;

  /// All stages. `shared` is the selection of another layer, or the caller's own; empty to use this layer's indexer.
  /// `workspace` serves `attend`; see there for alignment and size.
  [[nodiscard]] Tensor forward(const Plan& plan, ConstAnyView hidden, View<const std::int32_t> positions,
                               const LayerCaches& caches, const Requests& requests,
                               View<const std::int64_t> slot_mapping, std::optional<Selection> shared,
                               std::span<std::byte> workspace) const;

 private:
  ModelConfig config_;
  std::int64_t layer_;
  LayerWeights weights_;
  DType compute_;
  int threads_;
};

}  // namespace headrace
