// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headrace/export.h"

namespace headrace {

/// The dimensions of one rank's multi-head latent attention. Names are those of Hugging Face configurations.
struct HEADRACE_EXPORT Geometry {
  std::int64_t num_heads = 0;         ///< query heads of this rank, >= 1
  std::int64_t kv_lora_rank = 0;      ///< R: latent values per token, shared by all heads, >= 1
  std::int64_t qk_nope_head_dim = 0;  ///< query/key dims without position, >= 1
  std::int64_t qk_rope_head_dim = 0;  ///< query/key dims with rope, even; 0 for NoPE
  std::int64_t v_head_dim = 0;        ///< value dims, >= 1

  [[nodiscard]] std::int64_t qk_head_dim() const noexcept { return qk_nope_head_dim + qk_rope_head_dim; }
  /// Values the cache holds per token: the latent, then the rope key.
  [[nodiscard]] std::int64_t latent_dim() const noexcept { return kv_lora_rank + qk_rope_head_dim; }
  /// Throws Error when a dimension is out of its range.
  void validate() const;

  bool operator==(const Geometry&) const = default;
};

}  // namespace headrace
