// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "attention/mha/bit_mask_cuda.h"
#include "cache/request_rows.h"
#include "headrace/error.h"
#include "headrace/requests.h"
#include "headrace/selection.h"

/// Selections as kernels read them: which keys a row has, whatever order, repeats or impossible entries it has them in.
namespace headrace::attention::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kEntriesInFlight = 4;  ///< vectors of four entries a lane

/// What a slot of a page map holds that has no entry; else the page above, the block below.
inline constexpr unsigned long long kNoEntry = ~0ULL;

/// Where the search for a page starts.
[[nodiscard]] inline __device__ std::uint32_t hash(std::uint32_t page, std::uint32_t entries) {
  return __umulhi(page * 2654435769U, entries);
}

/// SelectionRule::covers as arithmetic on positions.
struct Coverage {
  std::int64_t complete_pools;  // a row that sees more is not covered; -1: none is
  std::int64_t pool;
  bool tail;

  explicit Coverage(const SelectionRule& rule)
      : complete_pools(rule.topk() / rule.pool()), pool(rule.pool()), tail(rule.tail()) {
    switch (rule.kind()) {
      case SelectionRule::Kind::none:
        complete_pools = std::numeric_limits<std::int64_t>::max();
        break;
      case SelectionRule::Kind::opaque:
        complete_pools = -1;
        break;
      case SelectionRule::Kind::lightning:
      case SelectionRule::Kind::kpool:
        break;
    }
  }
  [[nodiscard]] __device__ bool covers(std::int64_t position) const {
    const std::int64_t keys = position + 1;
    return keys / pool <= complete_pools && (tail || keys % pool == 0);
  }
};

/// A selection, the requests whose rows it has, and where their pages lie if it holds slots.
struct SelectedKeys {
  Coverage coverage;
  const std::int32_t* index;
  const std::int32_t* count;  // null: all columns count
  std::int64_t index_row_stride;
  std::int64_t index_stride;
  std::int64_t count_stride;
  std::int32_t tokens;
  std::int32_t width;
  const std::int32_t* query_start;
  const std::int32_t* seq_len;
  std::int64_t query_start_stride;
  std::int64_t seq_len_stride;
  std::int64_t num_requests;
  const std::uint64_t* page_map;
  std::uint32_t page_map_entries;
  std::uint32_t page_size;

  /// @param map  read where the selection holds slots. @throws Error where shapes do not fit
  SelectedKeys(const SelectionRule& rule, const Selection& selection, const Requests& requests, const PageMap& map,
               std::int64_t slots_a_page);

  /// Whether rows can be read by four entries.
  [[nodiscard]] bool is_vector() const noexcept {
    return index_stride == 1 && index_row_stride % 4 == 0 &&
           reinterpret_cast<std::uintptr_t>(index) % alignof(int4) == 0;
  }
  /// The query rows of a request.
  [[nodiscard]] __device__ cache::RequestRows rows_of(std::int64_t request) const {
    return cache::request_rows(query_start[request * query_start_stride],
                               query_start[(request + 1) * query_start_stride], seq_len[request * seq_len_stride],
                               tokens);
  }
  [[nodiscard]] __device__ std::int32_t keys_of(std::int64_t request) const {
    return cache::request_keys(seq_len[request * seq_len_stride]);
  }
};

/// Throws Error{name, expected, actual} unless `well`.
inline void expect(bool well, const char* name, const char* expected, std::int64_t actual) {
  if (!well) {
    throw Error(name, expected, std::to_string(actual));
  }
}

inline SelectedKeys::SelectedKeys(const SelectionRule& rule, const Selection& selection, const Requests& requests,
                                  const PageMap& map, std::int64_t slots_a_page)
    : coverage(rule),
      index(selection.index.data()),
      count(selection.count.empty() ? nullptr : selection.count.data()),
      index_row_stride(selection.index.stride(0)),
      index_stride(selection.index.stride(1)),
      count_stride(selection.count.stride(0)),
      tokens(selection.index.empty() ? std::numeric_limits<std::int32_t>::max()
                                     : cache::as_length(selection.index.dim(0))),
      width(static_cast<std::int32_t>(selection.index.dim(1))),
      query_start(requests.query_start.data()),
      seq_len(requests.seq_len.data()),
      query_start_stride(requests.query_start.stride(0)),
      seq_len_stride(requests.seq_len.stride(0)),
      num_requests(requests.seq_len.dim(0)),
      page_map(map.entries.data()),
      page_map_entries(static_cast<std::uint32_t>(map.entries.dim(1))),
      page_size(static_cast<std::uint32_t>(slots_a_page)) {
  if (!selection.index.empty()) {
    selection.index.expect("selection.index", {-1, -1});
  }
  if (!selection.count.empty()) {
    selection.count.expect("selection.count", {selection.index.dim(0)});
  }
  expect(selection.index.dim(1) <= std::numeric_limits<std::int32_t>::max(), "selection.index",
         "fewer than 2^31 columns", selection.index.dim(1));
  requests.seq_len.expect("seq_len", {-1});
  requests.query_start.expect("query_start", {num_requests + 1});
  if (selection.space == SelectionSpace::cache_slot) {
    map.entries.expect("page_map", {num_requests, -1});
    expect(slots_a_page >= 1, "page_size", "at least 1", slots_a_page);
    expect(map.entries.dim(1) >= 2, "page_map", "at least 2 entries a request", map.entries.dim(1));
  }
}

/// The bitmap of a row's keys [first, first + span) in shared memory: kWords words of 32 bits for each kRun keys, keys
/// in order.
template <int kRun, int kWords>
class RowBits {
 public:
  __device__ RowBits(std::uint32_t* words, std::uint32_t first, std::uint32_t span)
      : words_(words), first_(first), span_(span) {}

  /// Sets four keys' bits. Keys outside the window, negative ones among them, are left out: unsigned arithmetic puts
  /// them past its end.
  __device__ void set(const std::int32_t (&keys)[4]) const {
    std::uint32_t word = 0;
    std::uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t key = static_cast<std::uint32_t>(keys[i]) - first_;
      if (key < span_) {
        const std::uint32_t column = key % kRun;
        const std::uint32_t own = key / kRun * static_cast<std::uint32_t>(kWords) + column / 32;
        if (own != word && bits != 0) {
          atomicOr(words_ + word, bits);
          bits = 0;
        }
        word = own;
        bits |= 1U << column % 32;
      }
    }
    if (bits != 0) {
      atomicOr(words_ + word, bits);
    }
  }

  /// Sets word `index` to what it is when every key of the window is set, or to nothing.
  __device__ void assign(int index, bool all) const {
    const int column = index % kWords * 32;
    const int first = index / kWords * kRun + column;
    const int keys = min(min(32, kRun - column), static_cast<int>(span_) - first);
    words_[index] = !all || keys <= 0 ? 0 : ~0U >> (32 - keys);
  }

 private:
  std::uint32_t* words_;
  std::uint32_t first_;
  std::uint32_t span_;
};

/// A selection entry as a position; -1 where it is none of the request's.
/// @param page_map  the request's
template <bool kSlots>
[[nodiscard]] __device__ std::int32_t position_of(const SelectedKeys& from, const std::uint64_t* page_map,
                                                  std::int32_t entry) {
  if constexpr (kSlots) {
    if (entry < 0) {
      return -1;
    }
    const std::uint32_t page = static_cast<std::uint32_t>(entry) / from.page_size;
    for (std::uint32_t i = hash(page, from.page_map_entries);; i = i + 1 == from.page_map_entries ? 0 : i + 1) {
      const unsigned long long found = __ldg(reinterpret_cast<const unsigned long long*>(page_map) + i);
      if (found == kNoEntry) {
        return -1;
      }
      if (found >> 32 == page) {
        const std::int64_t block = static_cast<std::uint32_t>(found);
        // A position past the keys may exceed 32 bits where a page reaches far over them.
        const std::int64_t position = block * from.page_size + static_cast<std::uint32_t>(entry) % from.page_size;
        return position <= std::numeric_limits<std::int32_t>::max() ? static_cast<std::int32_t>(position) : -1;
      }
    }
  } else {
    return entry;
  }
}

/// Hands the positions of a row's selection to `take(const std::int32_t (&positions)[4])`, four at a time, negative
/// where there is none. `lanes` threads share the row's columns, this one being number `lane` of them.
template <bool kVector, bool kSlots, class Take>
__device__ void read_selection(const SelectedKeys& from, std::int64_t request, std::int64_t token, int lane, int lanes,
                               const Take& take) {
  const std::int32_t* row = from.index + token * from.index_row_stride;
  const std::uint64_t* page_map = kSlots ? from.page_map + request * from.page_map_entries : nullptr;
  const std::int32_t columns =
      from.count == nullptr ? from.width : max(0, min(from.width, from.count[token * from.count_stride]));
  const auto hand_over = [&](std::int32_t(&entries)[4]) {
#pragma unroll
    for (std::int32_t& entry : entries) {
      entry = position_of<kSlots>(from, page_map, entry);
    }
    take(entries);
  };
  std::int32_t done = 0;
  if constexpr (kVector) {
    const int vectors = columns / 4;
    done = vectors * 4;
    const int4* vector = reinterpret_cast<const int4*>(row);
    for (int first = lane; first < vectors; first += kEntriesInFlight * lanes) {
      int4 read[kEntriesInFlight];
#pragma unroll
      for (int i = 0; i < kEntriesInFlight; ++i) {
        const int at = first + i * lanes;
        read[i] = at < vectors ? __ldg(vector + at) : int4{-1, -1, -1, -1};
      }
#pragma unroll
      for (int i = 0; i < kEntriesInFlight; ++i) {
        std::int32_t entries[4] = {read[i].x, read[i].y, read[i].z, read[i].w};
        hand_over(entries);
      }
    }
  }
  // One by one, but four on their way at once; unsigned, because the last step may pass 2^31.
  const auto step = static_cast<std::uint32_t>(lanes);
  for (auto first = static_cast<std::uint32_t>(done + lane); first < static_cast<std::uint32_t>(columns);
       first += 4 * step) {
    std::int32_t entries[4];
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t at = first + i * step;
      entries[i] = at < static_cast<std::uint32_t>(columns) ? row[at * from.index_stride] : -1;
    }
    hand_over(entries);
  }
}

}  // namespace headrace::attention::cuda
