// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "headrace/layer.h"

namespace headrace::test {

struct StepOptions {
  std::optional<Path> force;
  std::optional<Selection> shared;
  std::optional<SelectionRule> rule;  ///< in place of the layer's
  int threads = 1;                    ///< of the attention: tests run side by side, on steps too small to share
};

/// One layer, some requests, and the caches between their steps. Pages are handed out in descending order, and every
/// byte that nobody wrote is 0xff: NaN in every format.
class LayerRun {
 public:
  /// @param capacity  the most tokens each request will have
  LayerRun(const Layer& layer, CacheFormat format, const std::vector<std::int64_t>& capacity,
           std::int64_t page_size = 16);

  /// Opens a step: request b brings query_len[b] tokens after those it has. What follows describes this step until the
  /// next one is opened.
  void open(const std::vector<std::int32_t>& query_len);
  [[nodiscard]] std::int64_t tokens() const noexcept { return static_cast<std::int64_t>(positions_.size()); }
  [[nodiscard]] View<const std::int32_t> positions() const;
  [[nodiscard]] View<const std::int64_t> slot_mapping() const;
  [[nodiscard]] Requests requests() const;
  [[nodiscard]] const LayerCaches& caches() const noexcept { return caches_; }
  [[nodiscard]] Plan plan(const StepOptions& options) const;

  /// The layer's output for the open step.
  [[nodiscard]] Tensor forward(ConstAnyView hidden, const StepOptions& options) const;

 private:
  const Layer& layer_;
  CacheFormat format_;
  std::int64_t page_size_;
  Tensor latent_bytes_;
  Tensor index_bytes_;
  LayerCaches caches_;
  std::int64_t max_pages_ = 0;
  std::vector<std::int32_t> block_table_;
  std::vector<std::int32_t> query_len_;
  std::vector<std::int32_t> seq_len_;
  std::vector<std::int32_t> query_start_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int64_t> slots_;
};

/// Runs one request of hidden.dim(0) tokens, `chunk` of them a step, and returns [S, hidden] float32.
/// @param shared  [S, width] the selection, or empty for the layer's own
/// @param force   the path of every chunk; none: the router's choice
[[nodiscard]] Tensor run_prompt(const Layer& layer, CacheFormat format, ConstAnyView hidden, std::int64_t chunk,
                                View<const std::int32_t> shared, std::optional<Path> force);

/// A float32 copy.
[[nodiscard]] Tensor to_float(const Tensor& tensor);
/// A copy in another compute dtype.
[[nodiscard]] Tensor convert(const Tensor& tensor, DType dtype);

/// How far `actual` [S, N] is from `expected`.
struct RelativeError {
  double whole = 0.0;      ///< Frobenius norm of the difference over that of `expected`
  double worst_row = 0.0;  ///< the same of the worst row
};
[[nodiscard]] RelativeError relative_error(View<const float> actual, View<const float> expected);

}  // namespace headrace::test
