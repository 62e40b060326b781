// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headrace/cuda_layer.h"
#include "layer/cuda/scratch.h"

namespace headrace::layer::cuda {

/// Runs an indexer on a GPU, with the memory that takes.
class Selector {
 public:
  /// Scores and selects, for every row: rows that do not read the selection take all that they see, which costs no
  /// scores, and nothing of the host's has to come along.
  /// @param longest_seq_len  keys of the longest request
  /// @param workspace_bytes  what scores may take, or more where they need it
  /// @return views on memory of this object, until the next call
  [[nodiscard]] Selection select(const IndexerGeometry& indexer, const CudaProjected& projected,
                                 const CacheView& index_cache, const Requests& requests, std::int64_t longest_seq_len,
                                 std::int64_t workspace_bytes, const CudaDevice& device, Stream stream);

 private:
  Scratch index_;
  Scratch count_;
  Scratch workspace_;
};

}  // namespace headrace::layer::cuda
