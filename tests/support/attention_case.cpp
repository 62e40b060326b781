// SPDX-License-Identifier: Apache-2.0
#include "support/attention_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <ostream>
#include <utility>

#include "support/cache_rows.h"

namespace headrace::test {
namespace {

constexpr std::int32_t kHuge = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kLowest = std::numeric_limits<std::int32_t>::min();

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

void store(Tensor& tensor, std::int64_t i, float value) {
  if (tensor.dtype() == DType::bfloat16) {
    reinterpret_cast<bfloat16*>(tensor.data())[i] = bfloat16(value);
  } else {
    reinterpret_cast<float*>(tensor.data())[i] = value;
  }
}

template <class T>
void shuffle(std::vector<T>& values, Random& random) {
  for (std::size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[at(random.below(static_cast<std::int64_t>(i)))]);
  }
}

/// Rows that the plan may or may not know to be covered: under k-pool without a tail that depends on the exact length.
bool coverage_is_uncertain(const SelectionRule& rule) {
  return rule.kind() == SelectionRule::Kind::kpool && !rule.tail();
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const CaseSpec& spec) {
  const Geometry& g = spec.geometry;
  stream << "heads " << g.num_heads << ", R " << g.kv_lora_rank << ", nope " << g.qk_nope_head_dim << ", rope "
         << g.qk_rope_head_dim << ", v " << g.v_head_dim << ", rule " << spec.rule.to_string() << ", compute "
         << name_of(spec.compute) << ", out " << name_of(spec.out) << ", cache " << name_of(spec.format)
         << ", requests (query+context)";
  for (const RequestShape& request : spec.requests) {
    stream << ' ' << request.query_len << '+' << request.context_len;
  }
  return stream << ", page size " << spec.page_size << ", spare pages " << spec.spare_pages << ", gaps " << spec.row_gap
                << '/' << spec.page_gap << '/' << spec.gap << ", width " << spec.width << '+' << spec.padding
                << ", space " << (spec.space == SelectionSpace::cache_slot ? "cache_slot" : "request_position")
                << ", selection " << spec.with_selection << ", count " << spec.with_count << ", sink " << spec.with_sink
                << ", repeated page " << spec.repeat_page << ", spread " << spec.spread << ", seed " << spec.seed;
}

AttentionCase::AttentionCase(CaseSpec spec) : spec_(std::move(spec)) {
  const Geometry& g = spec_.geometry;
  attention_ = {g,
                spec_.rule,
                spec_.spread / std::sqrt(static_cast<double>(g.qk_head_dim())),
                spec_.compute,
                spec_.format,
                spec_.space};
  query_start_.push_back(0);
  for (const RequestShape& request : spec_.requests) {
    tokens_ += request.query_len;
    query_len_.push_back(static_cast<std::int32_t>(request.query_len));
    seq_len_.push_back(static_cast<std::int32_t>(request.seq_len()));
    query_start_.push_back(static_cast<std::int32_t>(tokens_));
  }
  Random random(spec_.seed);
  place_pages(random);
  write_cache(random);

  const std::int64_t head_stride = g.qk_head_dim() + spec_.gap;
  const std::int64_t token_stride = g.num_heads * head_stride + spec_.gap;
  q_ = Tensor(spec_.compute, {tokens_, token_stride});
  std::fill_n(q_.data(), q_.size_bytes(), std::byte{0xff});
  for (std::int64_t token = 0; token < tokens_; ++token) {
    for (std::int64_t head = 0; head < g.num_heads; ++head) {
      for (std::int64_t i = 0; i < g.qk_head_dim(); ++i) {
        store(q_, token * token_stride + head * head_stride + i, random.normal());
      }
    }
  }
  kv_b_proj_ = Tensor(spec_.compute, {g.num_heads * (g.qk_nope_head_dim + g.v_head_dim), g.kv_lora_rank});
  const float deviation = 1.0F / std::sqrt(static_cast<float>(g.kv_lora_rank));
  for (std::int64_t i = 0; i < kv_b_proj_.dim(0) * kv_b_proj_.dim(1); ++i) {
    store(kv_b_proj_, i, deviation * random.normal());
  }
  for (std::int64_t head = 0; head < g.num_heads; ++head) {
    sink_.push_back(2.0F * random.normal());
  }
  write_selection(random);
}

// ---- the cache ------------------------------------------------------------------------------------------------------

std::int64_t AttentionCase::pages_of(std::int64_t request) const {
  return (spec_.requests[at(request)].seq_len() + spec_.page_size - 1) / spec_.page_size;
}

void AttentionCase::place_pages(Random& random) {
  const auto requests = static_cast<std::int64_t>(spec_.requests.size());
  std::int64_t needed = 0;
  std::int64_t longest = 0;
  for (std::int64_t request = 0; request < requests; ++request) {
    needed += pages_of(request);
    longest = std::max(longest, pages_of(request));
  }
  std::vector<std::int32_t> pages(at(needed + spec_.spare_pages));
  std::iota(pages.begin(), pages.end(), 0);
  shuffle(pages, random);

  table_width_ = longest + spec_.gap + 1;
  std::size_t next = 0;
  for (std::int64_t request = 0; request < requests; ++request) {
    for (std::int64_t i = 0; i < table_width_; ++i) {
      block_table_.push_back(i < pages_of(request) ? pages[next++] : random.chance(0.5) ? -1 : kHuge);
    }
    if (spec_.repeat_page && pages_of(request) >= 2) {
      block_table_[at(request * table_width_ + 1)] = block_table_[at(request * table_width_)];
    }
  }

  const std::vector<float> zeros(at(spec_.geometry.latent_dim()));
  const std::span<const float> row(zeros);
  row_bytes_ = static_cast<std::int64_t>(encode_row(spec_.format, row.first(at(spec_.geometry.kv_lora_rank)),
                                                    row.subspan(at(spec_.geometry.kv_lora_rank)), 1.0F)
                                             .size());
  const std::int64_t row_stride = row_bytes_ + spec_.row_gap * row_alignment(spec_.format);
  const std::int64_t page_stride = row_stride * spec_.page_size + spec_.page_gap * row_alignment(spec_.format);
  const auto num_pages = static_cast<std::int64_t>(pages.size());
  cache_.assign(at(num_pages * page_stride), std::byte{0xff});
  const float scale = spec_.format == CacheFormat::fp8 ? 0.017F : 1.0F;
  cache_view_ = {cache_.data(), num_pages, spec_.page_size, page_stride, row_stride, scale};
}

void AttentionCase::write_cache(Random& random) {
  std::vector<float> latent(at(spec_.geometry.kv_lora_rank));
  std::vector<float> rope_key(at(spec_.geometry.qk_rope_head_dim));
  double squares = 0.0;
  std::int64_t values = 0;
  for (std::int64_t request = 0; request < static_cast<std::int64_t>(spec_.requests.size()); ++request) {
    for (std::byte* row : key_rows(request)) {
      for (float& value : latent) {
        value = random.normal();
        squares += static_cast<double>(value * value);
        ++values;
      }
      for (float& value : rope_key) {
        value = random.normal();
      }
      std::ranges::copy(encode_row(spec_.format, latent, rope_key, cache_view_.scale), row);
    }
  }
  latent_rms_ = values > 0 ? std::sqrt(squares / static_cast<double>(values)) : 1.0;
}

std::int64_t AttentionCase::slot(std::int64_t request, std::int64_t key) const {
  return block_table_[at(request * table_width_ + key / spec_.page_size)] * spec_.page_size + key % spec_.page_size;
}

std::vector<std::byte*> AttentionCase::key_rows(std::int64_t request) {
  std::vector<std::byte*> rows;
  for (std::int64_t key = 0; key < spec_.requests[at(request)].seq_len(); ++key) {
    rows.push_back(cache_view_.row(slot(request, key)));
  }
  return rows;
}

void AttentionCase::fill_unused(std::byte value) {
  std::vector<std::byte> filled(cache_.size(), value);
  for (std::int64_t request = 0; request < static_cast<std::int64_t>(spec_.requests.size()); ++request) {
    for (const std::byte* row : key_rows(request)) {
      std::copy_n(row, row_bytes_, filled.begin() + (row - cache_.data()));
    }
  }
  std::ranges::copy(filled, cache_.begin());
}

void AttentionCase::spoil(std::int64_t request) {
  for (std::byte* row : key_rows(request)) {
    std::fill_n(row, row_bytes_, std::byte{0xff});
  }
}

// ---- the selection --------------------------------------------------------------------------------------------------

std::int32_t* AttentionCase::selection_row(std::int64_t token) { return index_.data() + token * (width_ + spec_.gap); }

std::int32_t AttentionCase::entry(std::int64_t request, std::int64_t key) const {
  return static_cast<std::int32_t>(spec_.space == SelectionSpace::cache_slot ? slot(request, key) : key);
}

/// An entry that must be ignored.
std::int32_t AttentionCase::trap(Random& random, const attention::OracleQuery& query) const {
  const std::int64_t seq_len = spec_.requests[at(query.request)].seq_len();
  switch (random.below(6)) {
    case 0:
      return -1;
    case 1:
      return kLowest;
    case 2:
      return kHuge;
    case 3:
      return static_cast<std::int32_t>(-2 - random.below(seq_len + 10));
    default:
      break;
  }
  if (spec_.space == SelectionSpace::request_position) {
    return static_cast<std::int32_t>(query.position + 1 + random.below(seq_len - query.position + 70));
  }
  // A slot of the cache, or just past it, that holds no key of this request.
  const std::int64_t candidate = random.below(cache_view_.num_slots() + 5);
  for (std::int64_t key = 0; key < seq_len; ++key) {
    if (slot(query.request, key) == candidate) {
      return -1;
    }
  }
  return static_cast<std::int32_t>(candidate);
}

void AttentionCase::write_selection(Random& random) {
  const bool sized_by_rule =
      spec_.rule.kind() == SelectionRule::Kind::lightning || spec_.rule.kind() == SelectionRule::Kind::kpool;
  width_ = (sized_by_rule ? spec_.rule.width() : spec_.width) + spec_.padding;
  index_.assign(at(tokens_ * (width_ + spec_.gap)), 0);
  count_.assign(at(tokens_), 0);
  for (const attention::OracleQuery& query : queries()) {
    write_selection_row(random, query);
    if (spec_.padding > 0 && !spec_.rule.covers(query.position)) {
      pad_selection_row(random, query);
    }
  }
}

void AttentionCase::write_selection_row(Random& random, const attention::OracleQuery& query) {
  const std::int64_t seq_len = spec_.requests[at(query.request)].seq_len();
  const std::int64_t visible = spec_.space == SelectionSpace::cache_slot ? seq_len : query.position + 1;
  const bool covered = spec_.rule.covers(query.position);
  std::int32_t* row = selection_row(query.token);

  // Entries that nobody may read: keys that would change the result if they counted.
  for (std::int64_t i = 0; i < width_ + spec_.gap; ++i) {
    row[i] = entry(query.request, random.below(seq_len));
  }
  if (covered && !coverage_is_uncertain(spec_.rule)) {
    count_[at(query.token)] = random.chance(0.5) ? kHuge : kLowest;
    return;
  }

  const std::int64_t width = width_ - spec_.padding;
  std::int64_t count = spec_.with_count ? random.below(width + 1) : width;
  const std::int64_t style = random.below(5);
  std::vector<std::int64_t> keys(at(covered ? query.position + 1 : visible));
  std::iota(keys.begin(), keys.end(), 0);
  shuffle(keys, random);
  if (covered || style == 0) {  // as many keys as there are
    count = spec_.with_count ? std::min(width, static_cast<std::int64_t>(keys.size())) : width;
    for (std::int64_t i = 0; i < count; ++i) {
      row[i] = at(i) < keys.size() ? entry(query.request, keys[at(i)]) : -1;
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      const bool nothing = style == 1;
      const std::int64_t key = i > 0 && random.chance(0.2) ? 0 : random.below(visible);
      row[i] = nothing || random.chance(0.3) ? trap(random, query) : entry(query.request, keys[at(key)]);
    }
  }
  count_[at(query.token)] = static_cast<std::int32_t>(count);
}

/// Other columns get what a row ignores or has already, so that it keeps the rule's word; then they all mix.
void AttentionCase::pad_selection_row(Random& random, const attention::OracleQuery& query) {
  std::int32_t& count = count_[at(query.token)];
  if (spec_.with_count && random.chance(0.5)) {
    return;  // none of the others counts
  }
  std::int32_t* row = selection_row(query.token);
  const bool repeats = count > 0 && random.chance(0.5);
  for (std::int64_t i = count; i < width_; ++i) {
    row[i] = repeats && random.chance(0.5) ? row[random.below(count)] : trap(random, query);
  }
  std::vector<std::int32_t> entries(row, row + width_);
  shuffle(entries, random);
  std::ranges::copy(entries, row);
  count = random.chance(0.5) ? kHuge : static_cast<std::int32_t>(width_);
}

void AttentionCase::shuffle_selection(std::uint64_t seed) {
  Random random(seed);
  for (const attention::OracleQuery& query : queries()) {
    const std::int64_t count = spec_.with_count ? std::clamp<std::int64_t>(count_[at(query.token)], 0, width_) : width_;
    std::int32_t* row = selection_row(query.token);
    std::vector<std::int32_t> entries(row, row + count);
    shuffle(entries, random);
    std::ranges::copy(entries, row);
  }
}

// ---- what the library sees ------------------------------------------------------------------------------------------

Weights AttentionCase::weights() const {
  Weights result;
  result.kv_b_proj = kv_b_proj_.view();
  if (spec_.with_sink) {
    result.sink = View<const float>(sink_.data(), {spec_.geometry.num_heads});
  }
  return result;
}

Inputs AttentionCase::inputs() const {
  const Geometry& g = spec_.geometry;
  const auto requests = static_cast<std::int64_t>(spec_.requests.size());
  const std::int64_t head_stride = g.qk_head_dim() + spec_.gap;
  Inputs result;
  result.q = ConstAnyView(q_.data(), spec_.compute, 3, {tokens_, g.num_heads, g.qk_head_dim(), 0},
                          {g.num_heads * head_stride + spec_.gap, head_stride, 1, 0});
  result.cache = cache_view_;
  result.requests.query_start = View<const std::int32_t>(query_start_.data(), {requests + 1});
  result.requests.seq_len = View<const std::int32_t>(seq_len_.data(), {requests});
  result.requests.block_table = View<const std::int32_t>(
      block_table_.data(), 2, {requests, table_width_ - spec_.gap, 0, 0}, {table_width_, 1, 0, 0});
  if (spec_.with_selection) {
    result.selection.index =
        View<const std::int32_t>(index_.data(), 2, {tokens_, width_, 0, 0}, {width_ + spec_.gap, 1, 0, 0});
    if (spec_.with_count) {
      result.selection.count = View<const std::int32_t>(count_.data(), {tokens_});
    }
  }
  result.selection.space = spec_.space;
  return result;
}

OutputBuffer AttentionCase::output_buffer() const {
  return OutputBuffer(tokens_, spec_.geometry.num_heads, spec_.geometry.v_head_dim, spec_.out, spec_.gap);
}

std::int64_t AttentionCase::begin_of(std::int64_t request) const { return query_start_[at(request)]; }

std::vector<attention::OracleQuery> AttentionCase::queries() const {
  std::vector<attention::OracleQuery> result;
  for (std::int64_t request = 0; request < static_cast<std::int64_t>(spec_.requests.size()); ++request) {
    const RequestShape& shape = spec_.requests[at(request)];
    for (std::int64_t i = 0; i < shape.query_len; ++i) {
      result.push_back({request, begin_of(request) + i, shape.context_len + i});
    }
  }
  return result;
}

std::vector<attention::OracleRow> AttentionCase::oracle() const {
  return attention::oracle_rows(attention_, weights(), inputs(), queries(), 1);
}

double AttentionCase::value_norm(const attention::OracleRow& row) const {
  const Geometry& g = spec_.geometry;
  double squares = 0.0;
  for (std::int64_t head = 0; head < g.num_heads; ++head) {
    const double kept = spec_.with_sink ? 1.0 / (1.0 + std::exp(double{sink_[at(head)]} - row.lse[at(head)])) : 1.0;
    // |W_UV| is sqrt(v) about: rows of R entries of variance 1/R.
    squares += kept * kept * static_cast<double>(g.v_head_dim);
  }
  return latent_rms_ * std::sqrt(squares);
}

}  // namespace headrace::test
