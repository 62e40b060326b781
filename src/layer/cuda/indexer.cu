// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "device/cuda/tensor.h"
#include "layer/cuda/indexer.h"
#include "selection/cuda/select.h"

namespace headrace::layer::cuda {

Selection Selector::select(const IndexerGeometry& indexer, const CudaProjected& projected, const CacheView& index_cache,
                           const Requests& requests, std::span<const std::int64_t> scoring_begin,
                           std::int64_t longest_seq_len, std::int64_t workspace_bytes, Stream stream) {
  const std::int64_t tokens = projected.index_query.dim(0);
  const View<std::int64_t> begin =
      scoring_begin_.take<std::int64_t>({static_cast<std::int64_t>(scoring_begin.size())}, stream);
  device::cuda::upload(std::as_bytes(scoring_begin), reinterpret_cast<std::byte*>(begin.data()), stream);
  const View<std::int32_t> index = index_.take<std::int32_t>({tokens, indexer.rule().width()}, stream);
  const View<std::int32_t> count = count_.take<std::int32_t>({tokens}, stream);
  const std::int64_t least = selection::cuda::select_workspace_minimum(indexer, longest_seq_len);
  const std::int64_t useful = selection::cuda::select_workspace_useful(indexer, tokens, longest_seq_len);
  const View<std::uint8_t> workspace =
      workspace_.take<std::uint8_t>({std::max(least, std::min(useful, workspace_bytes))}, stream);
  selection::cuda::select(
      indexer, index_cache, {projected.index_query, projected.index_weight}, requests, begin, longest_seq_len, index,
      count, {reinterpret_cast<std::byte*>(workspace.data()), static_cast<std::size_t>(workspace.size())}, stream);
  return {index, count};
}

}  // namespace headrace::layer::cuda
