// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headrace/indexer.h"
#include "selection/candidates.h"

namespace headrace::selection {

/// Throws Error unless the cache suits rows of this indexer in this compute dtype, and the dtype is one.
void validate_index_cache(const IndexerGeometry& indexer, DType compute, const CacheView& cache);

/// Reads the keys of one request's candidates. The pages must have been validated.
class IndexKeyReader {
 public:
  IndexKeyReader(const IndexerGeometry& indexer, DType compute, const CacheView& cache, const Requests& requests,
                 std::int64_t request) noexcept
      : candidates_(Candidates::of(indexer)),
        dim_(indexer.head_dim),
        compute_(compute),
        cache_(cache),
        requests_(requests),
        request_(request) {}

  /// Candidates [begin, end) as float32 rows: out [end - begin, head_dim].
  void read(std::int64_t begin, std::int64_t end, float* out) const;

 private:
  Candidates candidates_;
  std::int64_t dim_;
  DType compute_;
  CacheView cache_;
  Requests requests_;
  std::int64_t request_;
};

}  // namespace headrace::selection
