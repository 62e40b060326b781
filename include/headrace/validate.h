// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headrace/cache.h"
#include "headrace/export.h"
#include "headrace/requests.h"
#include "headrace/selection.h"

namespace headrace {

/// What is wrong, or merely unused, in a selection. Every path ignores such entries as the contract says; this counts
/// them, so that whoever made the selection can find out.
struct HEADRACE_EXPORT SelectionCounts {
  std::int64_t rows = 0;
  std::int64_t attended = 0;         ///< entries that count: each attended key once
  std::int64_t unused = 0;           ///< exactly -1, the usual padding
  std::int64_t negative = 0;         ///< below -1
  std::int64_t out_of_range = 0;     ///< not a key of the request
  std::int64_t future = 0;           ///< a key after the row's own position (request_position only)
  std::int64_t repeated = 0;         ///< a key that the row names already
  std::int64_t empty_rows = 0;       ///< rows that attend to nothing
  std::int64_t rows_past_count = 0;  ///< rows with something other than -1 in columns from their count on
  std::int64_t bad_counts = 0;       ///< counts outside [0, width]

  /// Nothing but unused entries.
  [[nodiscard]] bool clean() const noexcept;
};

/// @param cache_page_size  of the cache that slots refer to; only for cache_slot space
/// @throws Error for shapes that do not agree with the requests
[[nodiscard]] HEADRACE_EXPORT SelectionCounts count_selection(const Selection& selection, const Requests& requests,
                                                              std::int64_t cache_page_size = 1);

/// Keys [0, seq_len) of all requests whose latent or rope key holds a NaN or an infinity.
/// @throws Error for lengths or pages out of range
[[nodiscard]] HEADRACE_EXPORT std::int64_t count_non_finite_keys(const Geometry& geometry, CacheFormat format,
                                                                 const CacheView& cache, const Requests& requests);

}  // namespace headrace
