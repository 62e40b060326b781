// SPDX-License-Identifier: Apache-2.0
//
// The engine's call: an engine that owns all memory plans a step, appends to its paged cache, attends, and compares
// what comes out with what another implementation computed.
//   attend MODEL_FOLDER     a folder with config.json, model.safetensors and recording.safetensors
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <vector>

#include "headrace/attention.h"
#include "headrace/error.h"
#include "headrace/layer.h"
#include "headrace/model.h"
#include "headrace/plan.h"
#include "headrace/recording.h"

namespace {

constexpr std::int64_t kPageSize = 16;
constexpr double kTolerance = 3e-6;

double relative_error(const headrace::Tensor& got, const headrace::Tensor& expected) {
  const auto a = got.view_as<float>();
  const auto b = expected.view_as<float>();
  double difference = 0.0;
  double reference = 0.0;
  for (std::int64_t i = 0; i < a.dim(0); ++i) {
    for (std::int64_t j = 0; j < a.dim(1); ++j) {
      difference += std::pow(static_cast<double>(a(i, j)) - static_cast<double>(b(i, j)), 2);
      reference += std::pow(static_cast<double>(b(i, j)), 2);
    }
  }
  return std::sqrt(difference / reference);
}

/// One layer of a recording, its whole prompt as one request of one step.
double run_layer(const std::filesystem::path& folder, const headrace::ModelConfig& config,
                 const headrace::RecordedLayer& recorded, const headrace::Tensor& topk_indices) {
  using headrace::View;
  const headrace::DType compute = headrace::DType::float32;
  const headrace::Layer layer(config, recorded.layer,
                              headrace::load_layer_weights(folder, config, recorded.layer, 0, compute), compute);
  const headrace::Attention attention = layer.attention(headrace::CacheFormat::float32);

  // The step: what a scheduler knows. Pages are handed out backwards, for a cache need not be in order.
  const auto tokens = static_cast<std::int32_t>(recorded.hidden_states.dim(0));
  const std::int64_t pages = (tokens + kPageSize - 1) / kPageSize;
  const std::vector<std::int32_t> query_len{tokens};
  const std::vector<std::int32_t> seq_len{tokens};
  const std::vector<std::int32_t> query_start{0, tokens};
  std::vector<std::int32_t> block_table(static_cast<std::size_t>(pages));
  std::iota(block_table.rbegin(), block_table.rend(), 0);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens));
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<std::int64_t> slots(positions.size());
  for (std::size_t t = 0; t < slots.size(); ++t) {
    slots[t] = block_table[t / kPageSize] * kPageSize + static_cast<std::int64_t>(t) % kPageSize;
  }
  const headrace::Requests requests{View<const std::int32_t>(query_start.data(), {2}),
                                    View<const std::int32_t>(seq_len.data(), {1}),
                                    View<const std::int32_t>(block_table.data(), {1, pages})};

  // The plan is made once a step; every layer with the same attention uses it.
  const headrace::Plan plan = headrace::plan(attention, {query_len, seq_len, /*exact=*/true});
  std::printf("layer %lld\n%s", static_cast<long long>(recorded.layer), plan.explain().c_str());
  headrace::Tensor workspace(headrace::DType::uint8, {plan.workspace_bytes()});

  // The paged cache is the engine's memory.
  const std::int64_t row_bytes = headrace::cache_row_bytes(attention.format, attention.geometry);
  headrace::Tensor cache_memory(headrace::DType::uint8, {pages * kPageSize * row_bytes});
  const headrace::MutableCacheView cache{cache_memory.data(), pages, kPageSize, kPageSize * row_bytes, row_bytes};

  const headrace::Projected projected = layer.project(
      recorded.hidden_states.view(), View<const std::int32_t>(positions.data(), {tokens}), /*scoring=*/false);
  headrace::append(attention.geometry, attention.format, cache, projected.latent.view(), projected.rope_key.view(),
                   View<const std::int64_t>(slots.data(), {tokens}));

  headrace::Inputs inputs;
  inputs.q = projected.q.view();
  inputs.cache = cache;
  inputs.requests = requests;
  inputs.selection.index = topk_indices.view_as<std::int32_t>();
  headrace::Tensor attended(compute, {tokens, attention.geometry.num_heads, attention.geometry.v_head_dim});
  headrace::attend(plan, layer.attention_weights(), inputs, {attended.view(), {}},
                   {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())});
  return relative_error(layer.output(attended.view()), recorded.output);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: attend MODEL_FOLDER\n");
    return 2;
  }
  try {
    const std::filesystem::path folder = argv[1];
    // The recordings were made by transformers; an engine's would be read as Reading::engines, the default.
    const headrace::ModelConfig config = headrace::load_model_config(folder, headrace::Reading::transformers);
    const std::vector<headrace::RecordedLayer> layers = headrace::load_recording(folder / "recording.safetensors");
    bool all_well = true;
    for (const headrace::RecordedLayer& recorded : layers) {
      // Layers that share a selection use the one of the layer that made it.
      const std::int64_t source = config.selection_source(recorded.layer);
      for (const headrace::RecordedLayer& other : layers) {
        if (other.layer == source) {
          const double error = run_layer(folder, config, recorded, other.topk_indices);
          std::printf("relative error against the recording: %.1e\n\n", error);
          all_well = all_well && error <= kTolerance;
        }
      }
    }
    return all_well ? 0 : 1;
  } catch (const headrace::Error& error) {
    std::fprintf(stderr, "attend: %s\n", error.what());
    return 2;
  }
}
