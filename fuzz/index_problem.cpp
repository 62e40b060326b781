// SPDX-License-Identifier: Apache-2.0
#include "index_problem.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <numeric>

#include "support/random.h"

namespace headrace::fuzz {
namespace {

constexpr std::int64_t kMostWorkspace = std::int64_t{4} << 20;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

SelectionRule choose_rule(std::int64_t kind, std::int64_t topk, ByteSource& source) {
  const std::int64_t pool = 1 + source.below(std::min<std::int64_t>(topk, 5));
  const std::int64_t pooled = topk / pool * pool;
  switch (kind) {
    case 1:
      return SelectionRule::none();
    case 2:
      return SelectionRule::lightning(topk);
    case 3:
      return SelectionRule::kpool(pooled, pool, true);
    case 4:
      return SelectionRule::kpool(pooled, pool, false);
    default:
      return SelectionRule::opaque();
  }
}

Tensor random_tensor(DType dtype, std::initializer_list<std::int64_t> shape, float deviation, test::Random& random) {
  Tensor tensor(dtype, shape);
  const std::int64_t values = tensor.size_bytes() / size_of(dtype);
  for (std::int64_t i = 0; i < values; ++i) {
    const float value = deviation * random.normal();
    if (dtype == DType::bfloat16) {
      reinterpret_cast<bfloat16*>(tensor.data())[i] = bfloat16(value);
    } else {
      reinterpret_cast<float*>(tensor.data())[i] = value;
    }
  }
  return tensor;
}

}  // namespace

IndexProblem::IndexProblem(ByteSource source) {
  choose_scope(source);
  choose_attention(source);
  choose_requests(source);
  choose_selection(source);
  break_entries(source);
  shorten();
  make_operands();
  spoil_unowned();
}

void IndexProblem::choose_scope(ByteSource& source) {
  large_ = source.flag();
  threads_ = static_cast<int>(1 + source.below(3));
  scaled_rows_ = source.flag();
  shortening_ = static_cast<std::int32_t>(1 + source.below(4));
  other_space_ = source.below(8) == 7;  // seldom: nothing is computed then
}

/// In [0, n), or [0, 8 n) in a large problem.
std::int64_t IndexProblem::length_below(std::int64_t n, ByteSource& source) const {
  const std::int64_t length = source.below(n);
  return large_ ? 8 * length + source.below(8) : length;
}

void IndexProblem::choose_attention(ByteSource& source) {
  attention_.geometry = {1 + source.below(3), 16, 8, source.flag() ? 4 : 0, 8};
  const std::int64_t rule = source.below(5);
  attention_.rule = choose_rule(rule, 1 + length_below(24, source), source);
  attention_.compute = source.below(4) == 3 ? DType::bfloat16 : DType::float32;
  constexpr CacheFormat kFormats[] = {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8};
  attention_.format = kFormats[source.below(3)];
  if (scaled_rows_) {
    attention_.format = CacheFormat::fp8_ds_mla;
    attention_.geometry.kv_lora_rank = 512;
    attention_.geometry.qk_rope_head_dim *= 16;
  }
  attention_.scale = 1.0 / std::sqrt(static_cast<double>(attention_.geometry.qk_head_dim()));
  attention_.space = source.flag() ? SelectionSpace::cache_slot : SelectionSpace::request_position;
  with_sink_ = source.flag();
}

void IndexProblem::choose_requests(ByteSource& source) {
  exact_ = !source.flag();
  workspace_limit_ = kMostWorkspace >> source.below(10);
  page_size_ = 1 + length_below(9, source);
  num_pages_ = 1 + source.below(16);
  spoilt_slot_ = source.byte() % (page_size_ * num_pages_);
  const std::int64_t requests = source.below(4);
  for (std::int64_t b = 0; b < requests; ++b) {
    const std::int64_t query_len = length_below(13, source);
    const std::int64_t seq_len = query_len + length_below(29, source);
    // Bounds of a plan may lie above the exact lengths.
    const std::int64_t spare = exact_ ? 0 : length_below(20, source);
    tokens_ += query_len;
    query_start_.push_back(static_cast<std::int32_t>(tokens_));
    seq_len_.push_back(static_cast<std::int32_t>(seq_len));
    planned_query_len_.push_back(static_cast<std::int32_t>(query_len + spare / 4));
    planned_seq_len_.push_back(static_cast<std::int32_t>(seq_len + spare));
    table_width_ = std::max(table_width_, (seq_len + page_size_ - 1) / page_size_);
  }
  for (std::int64_t i = 0; i < requests * table_width_; ++i) {
    block_table_.push_back(static_cast<std::int32_t>((source.byte() + i) % num_pages_));
  }
}

void IndexProblem::choose_selection(ByteSource& source) {
  with_selection_ = !source.flag();
  with_count_ = source.flag();
  width_ = length_below(13, source);
  for (std::int64_t token = 0; token < tokens_; ++token) {
    count_.push_back(with_count_ ? source.number() : 0);
    choose_row(source);
  }
}

/// Any numbers, or in a large problem, whose rows are longer than inputs, a run of them.
void IndexProblem::choose_row(ByteSource& source) {
  if (!large_) {
    std::generate_n(std::back_inserter(index_), width_, [&] { return source.number(); });
    return;
  }
  const std::int64_t first = source.number();
  const std::int64_t step = 1 + source.number() % 8;
  for (std::int64_t i = 0; i < width_; ++i) {
    index_.push_back(static_cast<std::int32_t>(first + i * step));
  }
}

void IndexProblem::break_entries(ByteSource& source) {
  std::vector<std::int32_t>* const arrays[] = {&query_start_, &seq_len_, &block_table_, &planned_query_len_,
                                               &planned_seq_len_};
  const std::int64_t broken = source.below(4);
  for (std::int64_t i = 0; i < broken; ++i) {
    std::vector<std::int32_t>& array = *arrays[source.below(5)];
    const std::size_t which = source.byte();
    const std::int32_t value = source.number();
    if (!array.empty()) {
      array[which % array.size()] = value;
    }
  }
}

void IndexProblem::shorten() {
  const auto shorter = [&](std::int32_t length) { return length / shortening_; };
  std::ranges::transform(planned_query_len_, std::back_inserter(shorter_query_len_), shorter);
  std::ranges::transform(planned_seq_len_, std::back_inserter(shorter_seq_len_), shorter);
}

void IndexProblem::make_operands() {
  const Geometry& g = attention_.geometry;
  test::Random random(0);
  q_ = random_tensor(attention_.compute, {tokens_, g.num_heads, g.qk_head_dim()}, 1.0F, random);
  const float deviation = 1.0F / std::sqrt(static_cast<float>(g.kv_lora_rank));
  kv_b_proj_ = random_tensor(attention_.compute, {g.num_heads * (g.qk_nope_head_dim + g.v_head_dim), g.kv_lora_rank},
                             deviation, random);
  for (std::int64_t head = 0; head < g.num_heads; ++head) {
    sink_.push_back(random.normal());
  }
  const std::int64_t slots = page_size_ * num_pages_;
  const Tensor latent = random_tensor(DType::float32, {slots, g.kv_lora_rank}, 1.0F, random);
  const Tensor rope_key = random_tensor(DType::float32, {slots, g.qk_rope_head_dim}, 1.0F, random);
  std::vector<std::int64_t> every_slot(at(slots));
  std::iota(every_slot.begin(), every_slot.end(), 0);
  row_bytes_ = cache_row_bytes(attention_.format, g);
  cache_ = Tensor(DType::uint8, {slots, row_bytes_});
  const CacheView view = inputs().cache;
  append(g, attention_.format, {cache_.data(), num_pages_, page_size_, view.page_stride, view.row_stride, view.scale},
         latent.view(), rope_key.view(), View<const std::int64_t>(every_slot.data(), {slots}), 1);
}

void IndexProblem::spoil_unowned() {
  std::vector<bool> owned(at(page_size_ * num_pages_));
  for (std::size_t b = 0; b < seq_len_.size(); ++b) {
    const std::int64_t keys = std::min<std::int64_t>(seq_len_[b], table_width_ * page_size_);
    for (std::int64_t key = 0; key < keys; ++key) {
      const std::int64_t page = block_table_[b * at(table_width_) + at(key / page_size_)];
      if (page >= 0 && page < num_pages_) {
        owned[at(page * page_size_ + key % page_size_)] = true;
      }
    }
  }
  for (std::size_t slot = 0; slot < owned.size(); ++slot) {
    if (!owned[slot]) {
      std::fill_n(cache_.data() + slot * at(row_bytes_), row_bytes_, std::byte{0xff});
    }
  }
}

void IndexProblem::spoil_slot() { std::fill_n(cache_.data() + spoilt_slot_ * row_bytes_, row_bytes_, std::byte{0xff}); }

Weights IndexProblem::weights() const {
  Weights weights;
  weights.kv_b_proj = kv_b_proj_.view();
  if (with_sink_) {
    weights.sink = View<const float>(sink_.data(), {attention_.geometry.num_heads});
  }
  return weights;
}

Inputs IndexProblem::inputs() const {
  const auto requests = static_cast<std::int64_t>(seq_len_.size());
  Inputs inputs;
  inputs.q = q_.view();
  inputs.cache = {cache_.data(), num_pages_, page_size_, page_size_ * row_bytes_, row_bytes_, 1.0F};
  inputs.requests.query_start = View<const std::int32_t>(query_start_.data(), {requests + 1});
  inputs.requests.seq_len = View<const std::int32_t>(seq_len_.data(), {requests});
  inputs.requests.block_table = View<const std::int32_t>(block_table_.data(), {requests, table_width_});
  if (with_selection_) {
    inputs.selection.index = View<const std::int32_t>(index_.data(), {tokens_, width_});
    if (with_count_) {
      inputs.selection.count = View<const std::int32_t>(count_.data(), {tokens_});
    }
  }
  const bool slots = (attention_.space == SelectionSpace::cache_slot) != other_space_;
  inputs.selection.space = slots ? SelectionSpace::cache_slot : SelectionSpace::request_position;
  return inputs;
}

}  // namespace headrace::fuzz
