// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace headrace::test {

/// A small checkpoint with random weights, and what a float64 implementation of the layer says to random hidden states.
struct RecordedModelSpec {
  std::string model_type = "deepseek_v32";  ///< or glm_moe_dsa, glm5_next
  std::int64_t kv_lora_rank = 512;          ///< with 64 rope dims (none for glm5_next), so that every format holds it
  double score_stddev = 1.0;                ///< of the scores that attention's softmax is over
  std::int64_t tokens = 96;
  bool in_bfloat16 = false;  ///< the layer rounds to bfloat16 after every stage
  std::uint64_t seed = 0;
};

/// Writes config.json, model.safetensors and recording.safetensors to a folder. The recording's one layer selects
/// random keys, as many as its rule lets each row.
void write_recorded_model(const std::filesystem::path& folder, const RecordedModelSpec& spec);

}  // namespace headrace::test
