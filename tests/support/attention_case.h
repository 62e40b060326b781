// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <vector>

#include "attention/oracle.h"
#include "headrace/attention.h"
#include "headrace/tensor.h"
#include "support/output_buffer.h"
#include "support/random.h"

namespace headrace::test {

struct RequestShape {
  std::int64_t query_len = 0;
  std::int64_t context_len = 0;

  [[nodiscard]] std::int64_t seq_len() const noexcept { return query_len + context_len; }
};

/// Everything that determines a random problem.
struct CaseSpec {
  Geometry geometry{2, 32, 16, 8, 16};
  SelectionRule rule = SelectionRule::opaque();
  DType compute = DType::float32;
  DType out = DType::float32;
  CacheFormat format = CacheFormat::float32;
  std::vector<RequestShape> requests;
  std::int64_t page_size = 4;
  std::int64_t spare_pages = 2;  ///< pages of the cache that no request owns
  std::int64_t row_gap = 0;      ///< between rows of the cache, in units of its alignment
  std::int64_t page_gap = 0;     ///< between pages of the cache, likewise
  std::int64_t gap = 0;          ///< elements between rows of q, out, lse, the selection and the block table
  std::int64_t width = 8;        ///< columns of the selection where the rule does not say
  std::int64_t padding = 0;      ///< columns beyond them, of nothing that a row has not selected anyway
  SelectionSpace space = SelectionSpace::request_position;
  bool with_selection = true;
  bool with_count = true;
  bool with_sink = false;
  bool repeat_page = false;  ///< the first two pages of a request are one and the same page of the cache
  double spread = 1.0;       ///< standard deviation of the scores, about
  std::uint64_t seed = 0;
};

std::ostream& operator<<(std::ostream& stream, const CaseSpec& spec);

/// A random problem with all its memory. What nobody may read holds traps: NaN bytes in every gap, unused row and
/// unused page, impossible pages past the end of a request's pages, and in a selection beyond its count and in rows
/// that the rule covers, entries that would change the result.
class AttentionCase {
 public:
  explicit AttentionCase(CaseSpec spec);

  [[nodiscard]] const CaseSpec& spec() const noexcept { return spec_; }
  [[nodiscard]] const Attention& attention() const noexcept { return attention_; }
  [[nodiscard]] Batch batch() const { return {query_len_, seq_len_, true}; }
  [[nodiscard]] Weights weights() const;
  [[nodiscard]] Inputs inputs() const;
  [[nodiscard]] OutputBuffer output_buffer() const;
  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }
  /// First token of a request.
  [[nodiscard]] std::int64_t begin_of(std::int64_t request) const;
  /// Every query token.
  [[nodiscard]] std::vector<attention::OracleQuery> queries() const;
  [[nodiscard]] std::vector<attention::OracleRow> oracle() const;

  /// What a row's output can reach when nothing cancels: see compare.h.
  [[nodiscard]] double value_norm(const attention::OracleRow& row) const;

  /// Puts the columns of each row's selection, up to its count, in another order.
  void shuffle_selection(std::uint64_t seed);
  /// Fills every byte of the cache that is no request's key.
  void fill_unused(std::byte value);
  /// Makes every key of a request NaN.
  void spoil(std::int64_t request);

 private:
  void place_pages(Random& random);
  void write_cache(Random& random);
  void write_selection(Random& random);
  void write_selection_row(Random& random, const attention::OracleQuery& query);
  void pad_selection_row(Random& random, const attention::OracleQuery& query);
  [[nodiscard]] std::int64_t slot(std::int64_t request, std::int64_t key) const;
  [[nodiscard]] std::int32_t entry(std::int64_t request, std::int64_t key) const;
  [[nodiscard]] std::int32_t trap(Random& random, const attention::OracleQuery& query) const;
  [[nodiscard]] std::int32_t* selection_row(std::int64_t token);
  [[nodiscard]] std::vector<std::byte*> key_rows(std::int64_t request);
  [[nodiscard]] std::int64_t pages_of(std::int64_t request) const;

  CaseSpec spec_;
  Attention attention_;
  std::int64_t tokens_ = 0;
  std::int64_t row_bytes_ = 0;
  std::vector<std::int32_t> query_len_;
  std::vector<std::int32_t> seq_len_;
  std::vector<std::int32_t> query_start_;
  std::int64_t table_width_ = 0;
  std::vector<std::int32_t> block_table_;
  std::vector<std::byte> cache_;
  MutableCacheView cache_view_;
  double latent_rms_ = 1.0;
  Tensor q_;
  Tensor kv_b_proj_;
  std::vector<float> sink_;
  std::int64_t width_ = 0;
  std::vector<std::int32_t> index_;
  std::vector<std::int32_t> count_;
};

}  // namespace headrace::test
