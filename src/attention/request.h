// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headrace/attention.h"

namespace headrace::attention {

/// One request of a call, with its exact lengths.
struct Request {
  std::int64_t number = 0;
  std::int64_t first_token = 0;  ///< of its query tokens in 0..T
  std::int64_t query_len = 0;
  std::int64_t seq_len = 0;

  [[nodiscard]] std::int64_t context_len() const noexcept { return seq_len - query_len; }
  /// Query token at a request-local position.
  [[nodiscard]] std::int64_t token_at(std::int64_t position) const noexcept {
    return first_token + position - context_len();
  }
};

[[nodiscard]] inline Request request_of(const Requests& requests, std::int64_t number) noexcept {
  const std::int64_t first = requests.query_start(number);
  return {number, first, requests.query_start(number + 1) - first, requests.seq_len(number)};
}

/// The cache slot of a request's key. The page must have been validated.
[[nodiscard]] inline std::int64_t slot_of(const Requests& requests, const CacheView& cache, std::int64_t request,
                                          std::int64_t position) noexcept {
  return static_cast<std::int64_t>(requests.block_table(request, position / cache.page_size)) * cache.page_size +
         position % cache.page_size;
}

}  // namespace headrace::attention
