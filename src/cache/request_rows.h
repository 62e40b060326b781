// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "device/host_device.h"

/// How every kernel reads a request's lengths. They are on the device, and hold what the caller put there: any int32.
namespace headrace::cache {

/// Query rows of a request that follow each other: a row at each of the positions [begin, end), which are not negative.
struct RequestRows {
  std::int32_t begin;
  std::int32_t end;       ///< at least begin
  std::int32_t to_token;  ///< from a row's position

  [[nodiscard]] HEADRACE_HOST_DEVICE constexpr std::int32_t count() const noexcept { return end - begin; }

  /// Of the first row, where there is one.
  [[nodiscard]] HEADRACE_HOST_DEVICE constexpr std::int32_t token() const noexcept {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(begin) + static_cast<std::uint32_t>(to_token));
  }

  /// Those of these rows that lie at positions [first, last), which are not negative.
  [[nodiscard]] HEADRACE_HOST_DEVICE constexpr RequestRows within(std::int32_t first,
                                                                  std::int32_t last) const noexcept {
    const std::int32_t from = greater(first, begin);
    return {from, greater(from, lesser(last, end)), to_token};
  }

  /// Of these rows those numbered [first, first + most), which are not negative.
  [[nodiscard]] HEADRACE_HOST_DEVICE constexpr RequestRows slice(std::int32_t first, std::int32_t most) const noexcept {
    const std::int32_t from = begin + lesser(first, count());
    return {from, from + lesser(most, end - from), to_token};
  }

  [[nodiscard]] HEADRACE_HOST_DEVICE static constexpr std::int32_t lesser(std::int32_t a, std::int32_t b) noexcept {
    return a < b ? a : b;
  }
  [[nodiscard]] HEADRACE_HOST_DEVICE static constexpr std::int32_t greater(std::int32_t a, std::int32_t b) noexcept {
    return a > b ? a : b;
  }
};

/// The keys of a request are those at positions [0, request_keys(seq_len)).
[[nodiscard]] HEADRACE_HOST_DEVICE constexpr std::int32_t request_keys(std::int32_t seq_len) noexcept {
  return RequestRows::greater(seq_len, 0);
}

/// The rows of a request in tensors of `tokens` rows. Tokens [start, stop) are the request's last ones, so that token t
/// lies at position seq_len - (stop - t); of these tokens those count that lie in [0, tokens) and whose position is not
/// negative. Lengths that make sense give all of a request's rows. Whatever others give is inside the tensors and below
/// seq_len. No branches and no sum that overflows: a producer of 24 registers works this out for every tile.
/// @param start, stop  query_start[b] and query_start[b + 1]
[[nodiscard]] HEADRACE_HOST_DEVICE constexpr RequestRows request_rows(std::int32_t start, std::int32_t stop,
                                                                      std::int32_t seq_len,
                                                                      std::int32_t tokens) noexcept {
  const std::int32_t first = RequestRows::greater(start, 0);
  const std::int32_t last = RequestRows::greater(first, RequestRows::lesser(stop, tokens));
  // Of a request that ends past the tensors the positions from `end` on have no token.
  const std::int32_t past = RequestRows::greater(stop, last) - last;
  const std::int32_t end = RequestRows::greater(request_keys(seq_len) - past, 0);
  return {end - RequestRows::lesser(last - first, end), end, last - end};
}

/// A number of rows as lengths on the device can name it. @param rows  not negative
[[nodiscard]] HEADRACE_HOST_DEVICE constexpr std::int32_t as_length(std::int64_t rows) noexcept {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  return static_cast<std::int32_t>(rows < kMost ? rows : kMost);
}

}  // namespace headrace::cache
