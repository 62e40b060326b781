// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "byte_source.h"
#include "headrace/attention.h"
#include "headrace/tensor.h"

namespace headrace::fuzz {

/// A small attention problem whose index data (lengths, block tables, selections, and the plan's bounds) an input
/// makes up. Most inputs give valid lengths and pages; up to three entries are then overwritten with any number.
/// Queries, weights and keys are always the same random numbers, and cache rows that hold no request's key are NaN.
/// A large problem has up to 103 query tokens and 330 keys a request: several tiles, blocks and mask words.
class IndexProblem {
 public:
  explicit IndexProblem(ByteSource source);

  [[nodiscard]] const Attention& attention() const noexcept { return attention_; }
  [[nodiscard]] Batch batch() const noexcept { return {planned_query_len_, planned_seq_len_, exact_}; }
  /// Whether the plan is to be refreshed, to `shorter_batch` and to `batch` again, before it is used.
  [[nodiscard]] bool refreshes() const noexcept { return shortening_ > 1; }
  [[nodiscard]] Batch shorter_batch() const noexcept { return {shorter_query_len_, shorter_seq_len_, exact_}; }
  [[nodiscard]] Weights weights() const;
  [[nodiscard]] Inputs inputs() const;
  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }
  [[nodiscard]] std::int64_t workspace_limit() const noexcept { return workspace_limit_; }
  [[nodiscard]] int threads() const noexcept { return threads_; }

  /// Makes one row of the cache NaN, whoever's it is.
  void spoil_slot();
  [[nodiscard]] std::int64_t spoilt_slot() const noexcept { return spoilt_slot_; }

 private:
  void choose_scope(ByteSource& source);
  void choose_attention(ByteSource& source);
  void choose_requests(ByteSource& source);
  void choose_selection(ByteSource& source);
  void choose_row(ByteSource& source);
  void break_entries(ByteSource& source);
  void shorten();
  void make_operands();
  void spoil_unowned();

  [[nodiscard]] std::int64_t length_below(std::int64_t n, ByteSource& source) const;

  bool large_ = false;
  bool scaled_rows_ = false;  ///< the cache has the format fp8_ds_mla
  bool other_space_ = false;  ///< the selection is in another space than the attention says
  int threads_ = 1;
  std::int32_t shortening_ = 1;
  Attention attention_;
  std::int64_t page_size_ = 1;
  std::int64_t num_pages_ = 0;
  std::int64_t table_width_ = 0;
  std::int64_t tokens_ = 0;
  std::int64_t workspace_limit_ = 0;
  std::int64_t spoilt_slot_ = -1;
  std::int64_t row_bytes_ = 0;
  bool exact_ = true;
  bool with_sink_ = false;
  bool with_selection_ = true;
  bool with_count_ = true;
  std::vector<std::int32_t> planned_query_len_;
  std::vector<std::int32_t> planned_seq_len_;
  std::vector<std::int32_t> shorter_query_len_;
  std::vector<std::int32_t> shorter_seq_len_;
  std::vector<std::int32_t> query_start_{0};
  std::vector<std::int32_t> seq_len_;
  std::vector<std::int32_t> block_table_;
  std::int64_t width_ = 0;
  std::vector<std::int32_t> index_;
  std::vector<std::int32_t> count_;
  Tensor q_;
  Tensor kv_b_proj_;
  std::vector<float> sink_;
  Tensor cache_;
};

}  // namespace headrace::fuzz
