// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "headrace/cuda_indexer.h"
#include "layer/cuda/indexer.h"

namespace headrace::layer::cuda {

Selection Selector::select(const IndexerGeometry& indexer, const CudaProjected& projected, const CacheView& index_cache,
                           const Requests& requests, std::int64_t longest_seq_len, std::int64_t workspace_bytes,
                           const CudaDevice& device, Stream stream) {
  const std::int64_t tokens = projected.index_query.dim(0);
  const View<std::int32_t> index = index_.take<std::int32_t>({tokens, indexer.rule().width()}, stream);
  const View<std::int32_t> count = count_.take<std::int32_t>({tokens}, stream);
  const SelectWorkspace needs = cuda_select_workspace(indexer, tokens, longest_seq_len);
  const View<std::uint8_t> workspace =
      workspace_.take<std::uint8_t>({std::max(needs.least, std::min(needs.useful, workspace_bytes))}, stream);
  headrace::select(indexer, index_cache, {projected.index_query, projected.index_weight}, requests, {}, longest_seq_len,
                   index, count,
                   {reinterpret_cast<std::byte*>(workspace.data()), static_cast<std::size_t>(workspace.size())}, device,
                   stream);
  return {index, count};
}

}  // namespace headrace::layer::cuda
