// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <limits>

#include "cache/request_rows.h"
#include "headrace/cache.h"
#include "headrace/requests.h"

/// A step's requests and its paged cache as kernels take them. No address is formed from a page outside the cache.
namespace headrace::selection::cuda {

/// A query token's place.
struct Row {
  std::int64_t request = -1;  ///< -1: no request's
  std::int64_t position = -1;
  std::int64_t end = 0;  ///< one past the request's last token
};

struct DeviceRequests {
  const std::int32_t* query_start;
  const std::int32_t* seq_len;
  const std::int32_t* block_table;
  std::int64_t query_start_stride;
  std::int64_t seq_len_stride;
  std::int64_t table_row_stride;
  std::int64_t table_stride;
  std::int64_t table_width;
  std::int64_t count;

  explicit DeviceRequests(const Requests& requests)
      : query_start(requests.query_start.data()),
        seq_len(requests.seq_len.data()),
        block_table(requests.block_table.data()),
        query_start_stride(requests.query_start.stride(0)),
        seq_len_stride(requests.seq_len.stride(0)),
        table_row_stride(requests.block_table.stride(0)),
        table_stride(requests.block_table.stride(1)),
        table_width(requests.block_table.dim(1)),
        count(requests.seq_len.dim(0)) {}

  /// Whatever the lengths are, the row's position is below its request's seq_len, or the row is no request's.
  [[nodiscard]] __device__ Row find_row(std::int64_t token) const {
    // The last request that starts at or before the token; those without tokens are passed over.
    std::int64_t low = 0;
    std::int64_t high = count;
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (query_start[middle * query_start_stride] <= token ? low : high) = middle;
    }
    if (count == 0 || token < query_start[low * query_start_stride]) {
      return {};
    }
    const cache::RequestRows rows =
        cache::request_rows(query_start[low * query_start_stride], query_start[(low + 1) * query_start_stride],
                            seq_len[low * seq_len_stride], std::numeric_limits<std::int32_t>::max());
    const std::int64_t position = token - rows.to_token;
    return position >= rows.begin && position < rows.end ? Row{low, position, std::int64_t{rows.end} + rows.to_token}
                                                         : Row{};
  }
};

/// Byte is std::byte or const std::byte.
template <class Byte>
struct Pages {
  Byte* data;
  std::int64_t num_pages;
  std::int64_t page_size;
  std::int64_t page_stride;
  std::int64_t row_stride;

  explicit Pages(const BasicCacheView<Byte>& cache)
      : data(cache.data),
        num_pages(cache.num_pages),
        page_size(cache.page_size),
        page_stride(cache.page_stride),
        row_stride(cache.row_stride) {}

  /// The row of a slot, or null where the cache has none.
  [[nodiscard]] __device__ Byte* row_at(std::int64_t slot) const {
    if (slot < 0 || slot >= num_pages * page_size) {
      return nullptr;
    }
    return data + slot / page_size * page_stride + slot % page_size * row_stride;
  }

  /// The row of a request's position >= 0, or null where its page lies outside the cache or the block table.
  [[nodiscard]] __device__ Byte* key_row(const DeviceRequests& requests, std::int64_t request,
                                         std::int64_t position) const {
    // Positions are below 2^31, and a page that holds them all has them where a larger one has.
    constexpr std::int64_t kPositions = std::int64_t{1} << 31;
    const auto size = static_cast<std::uint32_t>(page_size < kPositions ? page_size : kPositions);
    const std::uint32_t block = static_cast<std::uint32_t>(position) / size;
    if (block >= requests.table_width) {
      return nullptr;
    }
    const std::int64_t page = requests.block_table[request * requests.table_row_stride + block * requests.table_stride];
    if (page < 0 || page >= num_pages) {
      return nullptr;
    }
    return data + page * page_stride + static_cast<std::uint32_t>(position) % size * row_stride;
  }
};

/// Eight values of a row, as they lie in memory.
template <class Value>
[[nodiscard]] __device__ uint4 load_eight(const Value* from, bool vector) {
  static_assert(sizeof(Value) == sizeof(std::uint16_t));
  if (vector) {
    return *reinterpret_cast<const uint4*>(from);
  }
  const auto* halves = reinterpret_cast<const std::uint16_t*>(from);
  const auto pair = [&](int i) { return halves[i] | static_cast<std::uint32_t>(halves[i + 1]) << 16; };
  return {pair(0), pair(2), pair(4), pair(6)};
}

}  // namespace headrace::selection::cuda
