// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "headrace/cache.h"
#include "headrace/requests.h"

namespace headrace::cache {

/// One request of a step, in 64-bit sizes.
struct Request {
  std::int64_t number = 0;
  std::int64_t first_token = 0;  ///< number of its first query token in the step
  std::int64_t query_len = 0;
  std::int64_t seq_len = 0;

  [[nodiscard]] std::int64_t context_len() const noexcept { return seq_len - query_len; }
  /// Query token at a request-local position.
  [[nodiscard]] std::int64_t token_at(std::int64_t position) const noexcept {
    return first_token + position - context_len();
  }
};

[[nodiscard]] Request request_of(const Requests& requests, std::int64_t number) noexcept;

/// Checks shapes and lengths of a step with `tokens` query tokens and returns its requests.
/// @throws Error naming the entry that is wrong
[[nodiscard]] std::vector<Request> validate_requests(const Requests& requests, std::int64_t tokens);

/// Throws Error unless the block table gives a page of the cache for every position [begin, end) of a request.
void validate_pages(const Requests& requests, std::int64_t request, std::int64_t begin, std::int64_t end,
                    const CacheView& cache);

/// The row of a request's key, once its page is known to be valid.
template <class Byte>
[[nodiscard]] Byte* key_row(const BasicCacheView<Byte>& cache, const Requests& requests, std::int64_t request,
                            std::int64_t position) noexcept {
  const std::int64_t page = requests.block_table(request, position / cache.page_size);
  return cache.row(page * cache.page_size + position % cache.page_size);
}

}  // namespace headrace::cache
