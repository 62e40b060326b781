// SPDX-License-Identifier: Apache-2.0
#include "geometry/same_layers.h"

#include <optional>
#include <tuple>

#include "geometry/yarn.h"

namespace headrace {
namespace {

auto frequencies(const Yarn& yarn) {
  return std::tuple(yarn.factor, yarn.original_max_position_embeddings, yarn.beta_fast, yarn.beta_slow, yarn.truncate,
                    yarn_attention_factor(yarn));
}

bool same_yarn(const std::optional<Yarn>& a, const std::optional<Yarn>& b) {
  return a.has_value() == b.has_value() && (!a || frequencies(*a) == frequencies(*b));
}

bool same_rope(const Rope& a, const Rope& b) {
  return a.dim == b.dim &&
         (a.dim == 0 || (a.theta == b.theta && a.interleave == b.interleave && same_yarn(a.yarn, b.yarn)));
}

auto dims(const IndexerGeometry& indexer) {
  return std::tuple(indexer.num_heads, indexer.head_dim, indexer.topk, indexer.rope_dim, indexer.kpool, indexer.pool,
                    indexer.tail, indexer.key_norm_epsilon,
                    // Without rope dims there is nothing to pair.
                    indexer.rope_dim > 0 && indexer.rope_interleave);
}

bool same_indexer(const std::optional<IndexerGeometry>& a, const std::optional<IndexerGeometry>& b) {
  return a.has_value() == b.has_value() && (!a || dims(*a) == dims(*b));
}

bool same_norms(const ModelConfig& a, const ModelConfig& b) {
  return a.kv_a_norm_epsilon == b.kv_a_norm_epsilon && (!a.q_lora_rank || a.q_a_norm_epsilon == b.q_a_norm_epsilon);
}

}  // namespace

bool same_layers(const ModelConfig& a, const ModelConfig& b) {
  return a.hidden_size == b.hidden_size && a.geometry == b.geometry && a.q_lora_rank == b.q_lora_rank &&
         same_rope(a.rope, b.rope) && same_norms(a, b) && a.softmax_scale == b.softmax_scale &&
         a.layer_kinds == b.layer_kinds && same_indexer(a.indexer, b.indexer) &&
         a.shares_selection == b.shares_selection;
}

}  // namespace headrace
