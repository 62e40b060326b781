// SPDX-License-Identifier: Apache-2.0
#include "naive.h"

#include <optional>
#include <set>

namespace headrace::fuzz {
namespace {

std::int64_t query_len(const Requests& requests, std::int64_t b) {
  return std::int64_t{requests.query_start(b + 1)} - requests.query_start(b);
}

std::int64_t slot_of(const Inputs& inputs, std::int64_t b, std::int64_t key) {
  const std::int64_t page_size = inputs.cache.page_size;
  return inputs.requests.block_table(b, key / page_size) * page_size + key % page_size;
}

/// The request's key that an entry names, whether the row may attend to it or not.
std::optional<std::int64_t> key_of(const Inputs& inputs, std::int64_t b, std::int64_t entry) {
  const std::int64_t seq_len = inputs.requests.seq_len(b);
  if (inputs.selection.space == SelectionSpace::request_position) {
    return entry < seq_len ? std::optional(entry) : std::nullopt;
  }
  const std::int64_t known = inputs.requests.block_table.dim(1) * inputs.cache.page_size;
  for (std::int64_t key = 0; key < seq_len && key < known; ++key) {
    if (slot_of(inputs, b, key) == entry) {
      return key;
    }
  }
  return std::nullopt;
}

void count_row(const Inputs& inputs, std::int64_t b, std::int64_t token, SelectionCounts& counts) {
  const Selection& selection = inputs.selection;
  const std::int64_t position = inputs.requests.seq_len(b) - (inputs.requests.query_start(b + 1) - token);
  const std::int64_t width = selection.index.dim(1);
  const std::int64_t count = selection.count.empty() ? width : selection.count(token);
  std::set<std::int64_t> attended;
  bool past = false;
  for (std::int64_t column = 0; column < width; ++column) {
    const std::int64_t entry = selection.index(token, column);
    if (column >= count) {
      past = past || entry != -1;
    } else if (entry == -1) {
      ++counts.unused;
    } else if (entry < 0) {
      ++counts.negative;
    } else if (const std::optional<std::int64_t> key = key_of(inputs, b, entry); !key) {
      ++counts.out_of_range;
    } else if (selection.space == SelectionSpace::request_position && *key > position) {
      ++counts.future;
    } else if (!attended.insert(*key).second) {
      ++counts.repeated;
    }
  }
  counts.rows += 1;
  counts.attended += static_cast<std::int64_t>(attended.size());
  counts.empty_rows += attended.empty() ? 1 : 0;
  counts.rows_past_count += past ? 1 : 0;
  counts.bad_counts += count < 0 || count > width ? 1 : 0;
}

bool within_plan(const Batch& batch, const Requests& requests, std::int64_t b) {
  const auto i = static_cast<std::size_t>(b);
  const std::int64_t seq_len = requests.seq_len(b);
  return batch.exact ? query_len(requests, b) == batch.query_len[i] && seq_len == batch.seq_len_bound[i]
                     : query_len(requests, b) <= batch.query_len[i] && seq_len <= batch.seq_len_bound[i];
}

bool every_row_covered(const SelectionRule& rule, const Requests& requests, std::int64_t b) {
  const std::int64_t seq_len = requests.seq_len(b);
  for (std::int64_t position = seq_len - query_len(requests, b); position < seq_len; ++position) {
    if (!rule.covers(position)) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool lengths_agree(const Requests& requests, std::int64_t tokens) {
  std::int64_t seen = 0;
  for (std::int64_t b = 0; b < requests.seq_len.dim(0); ++b) {
    if (requests.query_start(b) != seen || query_len(requests, b) < 0 || requests.seq_len(b) < query_len(requests, b)) {
      return false;
    }
    seen += query_len(requests, b);
  }
  return requests.query_start(requests.seq_len.dim(0)) == seen && seen == tokens;
}

bool has_pages(const Inputs& inputs, std::int64_t request) {
  const std::int64_t seq_len = inputs.requests.seq_len(request);
  if (seq_len > inputs.requests.block_table.dim(1) * inputs.cache.page_size) {
    return false;
  }
  for (std::int64_t key = 0; key < seq_len; ++key) {
    const std::int64_t slot = slot_of(inputs, request, key);
    if (slot < 0 || slot >= inputs.cache.num_slots()) {
      return false;
    }
  }
  return true;
}

bool must_attend(const Attention& attention, const Batch& batch, const Inputs& inputs) {
  if (inputs.selection.space != attention.space || !lengths_agree(inputs.requests, inputs.q.dim(0))) {
    return false;
  }
  for (std::int64_t b = 0; b < inputs.requests.seq_len.dim(0); ++b) {
    const bool reads_keys = query_len(inputs.requests, b) > 0;
    if (!within_plan(batch, inputs.requests, b) || (reads_keys && !has_pages(inputs, b)) ||
        (inputs.selection.index.empty() && !every_row_covered(attention.rule, inputs.requests, b))) {
      return false;
    }
  }
  return true;
}

SelectionCounts count_naively(const Inputs& inputs) {
  SelectionCounts counts;
  for (std::int64_t b = 0; b < inputs.requests.seq_len.dim(0); ++b) {
    for (std::int64_t token = inputs.requests.query_start(b); token < inputs.requests.query_start(b + 1); ++token) {
      count_row(inputs, b, token, counts);
    }
  }
  return counts;
}

std::int64_t keys_in_slot(const Inputs& inputs, std::int64_t slot) {
  std::int64_t keys = 0;
  for (std::int64_t b = 0; b < inputs.requests.seq_len.dim(0); ++b) {
    for (std::int64_t key = 0; key < inputs.requests.seq_len(b); ++key) {
      keys += slot_of(inputs, b, key) == slot ? 1 : 0;
    }
  }
  return keys;
}

}  // namespace headrace::fuzz
