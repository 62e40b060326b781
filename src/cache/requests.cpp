// SPDX-License-Identifier: Apache-2.0
#include "cache/requests.h"

#include <fmt/format.h>

#include "headrace/error.h"

namespace headrace::cache {

Request request_of(const Requests& requests, std::int64_t number) noexcept {
  const std::int64_t first = requests.query_start(number);
  return {number, first, requests.query_start(number + 1) - first, requests.seq_len(number)};
}

std::vector<Request> validate_requests(const Requests& requests, std::int64_t tokens) {
  const std::int64_t count = requests.seq_len.empty() ? 0 : requests.seq_len.dim(0);
  requests.seq_len.expect("seq_len", {-1});
  requests.query_start.expect("query_start", {count + 1});
  requests.block_table.expect("block_table", {count, -1});
  if (requests.query_start(0) != 0) {
    throw Error("query_start[0]", "0", std::to_string(requests.query_start(0)));
  }
  std::vector<Request> all;
  all.reserve(static_cast<std::size_t>(count));
  for (std::int64_t b = 0; b < count; ++b) {
    const std::int64_t begin = requests.query_start(b);
    const std::int64_t end = requests.query_start(b + 1);
    const std::int64_t seq_len = requests.seq_len(b);
    if (end < begin || end > tokens) {
      throw Error(fmt::format("query_start[{}]", b + 1), fmt::format("a number in [{}, {}]", begin, tokens),
                  std::to_string(end));
    }
    if (seq_len < end - begin) {
      throw Error(fmt::format("seq_len[{}]", b), fmt::format("at least its query_len {}", end - begin),
                  std::to_string(seq_len));
    }
    all.push_back({b, begin, end - begin, seq_len});
  }
  if (requests.query_start(count) != tokens) {
    throw Error(fmt::format("query_start[{}]", count), fmt::format("the step's {} tokens", tokens),
                std::to_string(requests.query_start(count)));
  }
  return all;
}

void validate_pages(const Requests& requests, std::int64_t request, std::int64_t begin, std::int64_t end,
                    const CacheView& cache) {
  if (begin >= end) {
    return;
  }
  const std::int64_t last = (end - 1) / cache.page_size;
  if (last >= requests.block_table.dim(1)) {
    throw Error("block_table", fmt::format("at least {} columns for {} keys of request {}", last + 1, end, request),
                std::to_string(requests.block_table.dim(1)));
  }
  for (std::int64_t i = begin / cache.page_size; i <= last; ++i) {
    const std::int64_t page = requests.block_table(request, i);
    if (page < 0 || page >= cache.num_pages) {
      throw Error(fmt::format("block_table[{}, {}]", request, i), fmt::format("a page in [0, {})", cache.num_pages),
                  std::to_string(page));
    }
  }
}

}  // namespace headrace::cache
