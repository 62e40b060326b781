// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "headrace/view.h"

namespace headrace::selection {

/// A synthetic selection for tests and benchmarks (TARGETS: uniform, drift, pooled, local).
struct Generator {
  enum class Kind : std::uint8_t { uniform, drift, pooled, local };
  Kind kind = Kind::uniform;
  std::int64_t topk = 2048;
  double rho = 0.9;       ///< drift and pooled: the share of the row before that a row keeps
  std::int64_t pool = 4;  ///< pooled only
  std::uint64_t seed = 0;

  /// Columns a row may need: topk, or topk + pool - 1 for pooled.
  [[nodiscard]] std::int64_t width() const noexcept;
  /// Fills the rows of one request: query tokens at positions [context_len, context_len + index.dim(0)).
  /// index [query_len, >= width()], count [query_len]; the columns from count on are set to -1. Ascending positions.
  /// The same arguments give the same rows on every machine; requests and seeds give different ones.
  /// @throws Error for shapes or fields out of range: topk >= 1, rho in [0, 1], 1 <= pool <= topk
  void fill(std::int64_t request, std::int64_t context_len, View<std::int32_t> index, View<std::int32_t> count) const;
};

/// "uniform", "drift:0.9", "pooled:4:0.9", "local". @throws Error for anything else
[[nodiscard]] Generator parse_generator(std::string_view text);

}  // namespace headrace::selection
