// SPDX-License-Identifier: Apache-2.0
#include "headrace/validate.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/requests.h"
#include "cache/row_codec.h"
#include "headrace/error.h"

namespace headrace {
namespace {

/// Where the slots of a request's pages lie in the request.
class SlotMap {
 public:
  SlotMap(const Requests& requests, const cache::Request& request, std::int64_t page_size)
      : page_size_(page_size), seq_len_(request.seq_len) {
    const std::int64_t blocks = (request.seq_len + page_size - 1) / page_size;
    for (std::int64_t i = 0; i < std::min(blocks, requests.block_table.dim(1)); ++i) {
      block_.try_emplace(requests.block_table(request.number, i), i);
    }
  }
  [[nodiscard]] std::optional<std::int64_t> position_of(std::int64_t slot) const {
    const auto found = block_.find(slot / page_size_);
    if (found == block_.end()) {
      return std::nullopt;
    }
    const std::int64_t position = found->second * page_size_ + slot % page_size_;
    return position < seq_len_ ? std::optional(position) : std::nullopt;
  }

 private:
  std::int64_t page_size_;
  std::int64_t seq_len_;
  std::unordered_map<std::int64_t, std::int64_t> block_;
};

/// Counts the rows of one request.
class RowCounter {
 public:
  RowCounter(const Selection& selection, const Requests& requests, const cache::Request& request,
             std::int64_t page_size, SelectionCounts& counts)
      : selection_(selection), request_(request), counts_(counts) {
    if (selection.space == SelectionSpace::cache_slot) {
      slots_ = std::make_unique<SlotMap>(requests, request, page_size);
    }
  }

  void add(std::int64_t position) {
    const std::int64_t token = request_.token_at(position);
    const std::int64_t width = selection_.index.dim(1);
    const std::int64_t columns = columns_of(token, width);
    keys_.clear();
    for (std::int64_t c = 0; c < columns; ++c) {
      add_entry(selection_.index(token, c), position);
    }
    std::sort(keys_.begin(), keys_.end());
    const std::int64_t attended = std::unique(keys_.begin(), keys_.end()) - keys_.begin();
    counts_.attended += attended;
    counts_.repeated += static_cast<std::int64_t>(keys_.size()) - attended;
    bool past = false;
    for (std::int64_t c = columns; c < width; ++c) {
      past = past || selection_.index(token, c) != -1;
    }
    ++counts_.rows;
    counts_.rows_past_count += past ? 1 : 0;
    counts_.empty_rows += attended == 0 ? 1 : 0;
  }

 private:
  std::int64_t columns_of(std::int64_t token, std::int64_t width) {
    if (selection_.count.empty()) {
      return width;
    }
    const std::int64_t count = selection_.count(token);
    counts_.bad_counts += count < 0 || count > width ? 1 : 0;
    return std::clamp<std::int64_t>(count, 0, width);
  }

  void add_entry(std::int64_t entry, std::int64_t position) {
    if (entry < 0) {
      ++(entry == -1 ? counts_.unused : counts_.negative);
      return;
    }
    const std::optional<std::int64_t> key = slots_ ? slots_->position_of(entry) : entry;
    if (!key || *key >= request_.seq_len) {
      ++counts_.out_of_range;
    } else if (!slots_ && *key > position) {
      ++counts_.future;
    } else {
      keys_.push_back(*key);
    }
  }

  const Selection& selection_;
  const cache::Request& request_;
  SelectionCounts& counts_;
  std::vector<std::int64_t> keys_;  ///< that the row names; lengths nobody vouches for must not size any memory
  std::unique_ptr<SlotMap> slots_;
};

}  // namespace

bool SelectionCounts::clean() const noexcept {
  return negative == 0 && out_of_range == 0 && future == 0 && repeated == 0 && rows_past_count == 0 && bad_counts == 0;
}

SelectionCounts count_selection(const Selection& selection, const Requests& requests, std::int64_t cache_page_size) {
  const std::int64_t tokens = selection.index.dim(0);
  selection.index.expect("selection.index", {tokens, -1});
  if (!selection.count.empty()) {
    selection.count.expect("selection.count", {tokens});
  }
  if (selection.space == SelectionSpace::cache_slot && cache_page_size < 1) {
    throw Error("cache_page_size", "at least 1", std::to_string(cache_page_size));
  }
  SelectionCounts counts;
  for (const cache::Request& request : cache::validate_requests(requests, tokens)) {
    RowCounter counter(selection, requests, request, cache_page_size, counts);
    for (std::int64_t position = request.context_len(); position < request.seq_len; ++position) {
      counter.add(position);
    }
  }
  return counts;
}

std::int64_t count_non_finite_keys(const Geometry& geometry, CacheFormat format, const CacheView& cache,
                                   const Requests& requests) {
  validate_cache(cache, format, geometry);
  const cache::RowCodec codec(format, geometry, DType::float32, cache.scale);
  std::vector<float> row(static_cast<std::size_t>(geometry.latent_dim()));
  std::int64_t bad = 0;
  const std::int64_t count = requests.seq_len.dim(0);
  requests.query_start.expect("query_start", {count + 1});
  const std::int64_t tokens = requests.query_start(count);
  for (const cache::Request& request : cache::validate_requests(requests, tokens)) {
    cache::validate_pages(requests, request.number, 0, request.seq_len, cache);
    for (std::int64_t position = 0; position < request.seq_len; ++position) {
      codec.read(cache::key_row(cache, requests, request.number, position), row.data(),
                 row.data() + geometry.kv_lora_rank);
      bad += std::all_of(row.begin(), row.end(), [](float value) { return std::isfinite(value); }) ? 0 : 1;
    }
  }
  return bad;
}

}  // namespace headrace
