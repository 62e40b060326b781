// SPDX-License-Identifier: Apache-2.0
#include "prefill_memory.h"

#include <algorithm>

#include "step.h"
#include "step_selection.h"

namespace headrace::app {
namespace {

/// A layer that scores, or one that takes a selection, or neither.
struct Role {
  bool scores = false;
  bool shares = false;
};

Role role_of(const ModelConfig& config, std::int64_t layer) {
  if (config.selection_rule(layer).kind() == SelectionRule::Kind::none) {
    return {};
  }
  const bool shares = config.selection_source(layer) != layer;
  return {!shares, shares};
}

std::int64_t weight_values(const ModelConfig& config, bool scores) {
  const Geometry& g = config.geometry;
  const std::int64_t q_rows = g.num_heads * g.qk_head_dim();
  std::int64_t values = g.latent_dim() * config.hidden_size;
  values += g.num_heads * (g.qk_nope_head_dim + g.v_head_dim) * g.kv_lora_rank;
  values += config.hidden_size * g.num_heads * g.v_head_dim;
  values += config.q_lora_rank ? *config.q_lora_rank * (config.hidden_size + q_rows) : q_rows * config.hidden_size;
  if (scores) {
    const IndexerGeometry& indexer = *config.indexer;
    values += indexer.num_heads * indexer.head_dim * config.q_lora_rank.value_or(0);
    values += (2 * indexer.head_dim + indexer.num_heads) * config.hidden_size;
  }
  return values;
}

/// Values a token that is projected leaves behind, hidden states and low-rank query included.
std::int64_t projected_values(const ModelConfig& config, bool scores) {
  const Geometry& g = config.geometry;
  std::int64_t values = config.hidden_size + g.num_heads * g.qk_head_dim() + config.q_lora_rank.value_or(0);
  values += g.latent_dim();
  if (scores) {
    const IndexerGeometry& indexer = *config.indexer;
    // The head weights are float32 whatever the compute dtype: two values each.
    values += indexer.num_heads * (indexer.head_dim + 2) + 2 * indexer.head_dim;
  }
  return values;
}

std::int64_t largest_step_tokens(const Options& options) {
  std::int64_t largest = 0;
  std::int64_t context = 0;
  for (const RequestSpec& request : options.batch) {
    largest += options.prefill_chunk > 0 ? std::min(options.prefill_chunk, request.query_len) : request.query_len;
    context += request.context_len;
  }
  return std::max(largest, std::min(context, kContextTokensAtOnce));
}

}  // namespace

MemoryEstimate prefill_memory(const ModelSource& model, std::int64_t layer, const Attention& attention,
                              const Options& options) {
  const ModelConfig& config = model.config;
  const Geometry& g = config.geometry;
  const Role role = role_of(config, layer);
  const bool generates = options.selection.kind == SelectionSource::Kind::generator;
  const std::int64_t element = size_of(options.compute);
  MemoryEstimate estimate;
  estimate.add(weight_values(config, role.scores), element);
  if (role.shares && !generates) {
    estimate.add(weight_values(config, true), element);
  }

  std::int64_t slots = 0;
  std::int64_t max_pages = 0;
  std::int64_t longest = 0;
  for (const RequestSpec& request : options.batch) {
    const std::int64_t pages = (request.seq_len() + PageTable::kPageSize - 1) / PageTable::kPageSize;
    slots += pages * PageTable::kPageSize;
    max_pages = std::max(max_pages, pages);
    longest = std::max(longest, request.seq_len());
  }
  estimate.add(role.shares && !generates ? 2 * slots : slots, cache_row_bytes(attention.format, g));
  const bool index_cache = role.scores || (role.shares && !generates);
  if (index_cache) {
    estimate.add(slots, config.indexer->cache_row_bytes(options.compute));
    estimate.add(1, select_workspace(*config.indexer, longest));
  }
  // The page table with the order it is drawn in, then a step's block table.
  estimate.add(slots / PageTable::kPageSize, 8);
  estimate.add(static_cast<std::int64_t>(options.batch.size()), 4 * max_pages);

  const std::int64_t tokens = largest_step_tokens(options);
  estimate.add(tokens, projected_values(config, index_cache) * element);
  estimate.add(tokens, (g.num_heads * g.v_head_dim + config.hidden_size) * element);
  estimate.add(tokens, 16 + 4 * g.num_heads);  // positions, slots, LSE
  if (index_cache) {
    estimate.add(tokens, 4 * (config.indexer->rule().width() + 1));
  }
  if (generates) {
    const std::int64_t copies = options.prefill_chunk > 0 ? 2 : 1;
    estimate.add(query_tokens(options.batch), 4 * copies * (model_generator(config, options).width() + 1));
  }
  return estimate;
}

}  // namespace headrace::app
