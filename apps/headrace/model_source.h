// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "headrace/attention.h"
#include "headrace/layer.h"
#include "headrace/model.h"
#include "options.h"
#include "output.h"
#include "target.h"

namespace headrace::app {

/// The model a command line names: a folder where that exists, else a preset.
struct ModelSource {
  std::string name;
  bool is_preset = false;
  ModelConfig config;                           ///< of one rank
  std::int64_t total_heads = 0;                 ///< of all ranks
  std::optional<std::filesystem::path> folder;  ///< with weights; absent: random ones

  /// The layer's weights on rank 0.
  [[nodiscard]] LayerWeights weights(std::int64_t layer, DType compute, std::uint64_t seed) const;
};

/// @throws Error for a preset that does not exist, a folder without a good config.json, heads that tp does not divide
[[nodiscard]] ModelSource find_model(const std::string& model, std::int64_t tp, Reading reading);

/// The layer of --layer, or the first that attends. @throws Error naming --layer where it is not an MLA layer
[[nodiscard]] std::int64_t chosen_layer(const ModelConfig& config, const std::optional<std::int64_t>& layer);

/// The attention of a layer under a selection: a caller's own makes its rule opaque.
[[nodiscard]] Attention attention_of(const ModelConfig& config, std::int64_t layer, const Options& options);

/// The plan of a step. @throws ForcedPathError when --force names a path that cannot serve it, with every reason
[[nodiscard]] Plan plan_step(const Attention& attention, const Batch& batch, const Options& options,
                             const Target& target);

/// Tells the notes of a configuration on stderr, a line each.
void tell_notes(const ModelConfig& config);

/// Adds "reading" and "notes" to a command's document.
void add_reading(Json& document, const ModelConfig& config);

/// Tells on stderr of a request with positions beyond the model's max_position_embeddings.
void note_long_requests(const ModelConfig& config, const std::vector<RequestSpec>& batch);

/// What is computed, in lines of at most `width` characters: "glm-5.3-flash layer 3: 16 of 64 heads, R 512, nope/rope/v
/// 256/0/256, selection rule ...", and "bfloat16, cache bf16, cpu with 2 threads".
[[nodiscard]] std::string describe(const ModelSource& model, std::int64_t layer, const Attention& attention,
                                   const Device& device, std::size_t width);

}  // namespace headrace::app
