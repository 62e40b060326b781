// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "headrace/cuda_layer.h"
#include "layer/cuda/scratch.h"

namespace headrace::layer::cuda {

/// Runs an indexer on a GPU, with the memory that takes.
class Selector {
 public:
  /// Scores and selects for the rows at positions >= scoring_begin[b] of each request; other rows get count 0.
  /// @param scoring_begin    [B] on the host
  /// @param longest_seq_len  keys of the longest request
  /// @param workspace_bytes  what scores may take, or more where they need it
  /// @return views on memory of this object, until the next call
  [[nodiscard]] Selection select(const IndexerGeometry& indexer, const CudaProjected& projected,
                                 const CacheView& index_cache, const Requests& requests,
                                 std::span<const std::int64_t> scoring_begin, std::int64_t longest_seq_len,
                                 std::int64_t workspace_bytes, Stream stream);

 private:
  Scratch scoring_begin_;
  Scratch index_;
  Scratch count_;
  Scratch workspace_;
};

}  // namespace headrace::layer::cuda
