// SPDX-License-Identifier: Apache-2.0
#include "headrace/validate.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "headrace/error.h"
#include "headrace/tensor.h"

namespace headrace {
namespace {

/// Two requests: 2 + 1 tokens (new + cached), 1 + 0; pages of two tokens.
class Validate : public testing::Test {
 protected:
  const std::vector<std::int32_t> query_start_{0, 2, 3};
  const std::vector<std::int32_t> seq_len_{3, 1};
  const std::vector<std::int32_t> block_table_{4, 1, 2, 0};
  const Requests requests_{View<const std::int32_t>(query_start_.data(), {3}),
                           View<const std::int32_t>(seq_len_.data(), {2}),
                           View<const std::int32_t>(block_table_.data(), {2, 2})};

  [[nodiscard]] SelectionCounts count(const std::vector<std::int32_t>& index, const std::vector<std::int32_t>& count,
                                      SelectionSpace space) const {
    Selection selection;
    selection.index = View<const std::int32_t>(index.data(), {3, static_cast<std::int64_t>(index.size()) / 3});
    if (!count.empty()) {
      selection.count = View<const std::int32_t>(count.data(), {3});
    }
    selection.space = space;
    return count_selection(selection, requests_, 2);
  }
};

TEST_F(Validate, CountsEveryKindOfBadEntry) {
  // Rows at positions 1 and 2 of request 0, and 0 of request 1.
  const SelectionCounts counts = count(
      {
          0,
          0,
          2,
          -1,
          9,  // key 0, again, the future, unused, and after the count
          3,
          2,
          1,
          -7,
          -1,  // out of range, 2, 1, negative, unused
          0,
          -1,
          -1,
          -1,
          -1,
      },
      {4, 5, 7}, SelectionSpace::request_position);
  EXPECT_EQ(counts.rows, 3);
  EXPECT_EQ(counts.attended, 1 + 2 + 1);
  EXPECT_EQ(counts.repeated, 1);
  EXPECT_EQ(counts.future, 1);
  EXPECT_EQ(counts.out_of_range, 1);
  EXPECT_EQ(counts.negative, 1);
  EXPECT_EQ(counts.unused, 1 + 1 + 4);
  EXPECT_EQ(counts.rows_past_count, 1);
  EXPECT_EQ(counts.bad_counts, 1);
  EXPECT_EQ(counts.empty_rows, 0);
  EXPECT_FALSE(counts.clean());
}

TEST_F(Validate, SlotsOfOtherRequestsAreOutOfRangeAndNothingIsFuture) {
  // Request 0 has keys in slots 8, 9, 2; slot 3 is beyond its third key; slot 4 is request 1's only key.
  const SelectionCounts counts = count({8, 2, 3, 9, 9, 4, 4, 8, -1}, {}, SelectionSpace::cache_slot);
  EXPECT_EQ(counts.attended, 2 + 1 + 1);
  EXPECT_EQ(counts.out_of_range, 1 + 1 + 1);
  EXPECT_EQ(counts.repeated, 1);
  EXPECT_EQ(counts.future, 0);
}

TEST_F(Validate, LengthsSizeNoMemory) {
  // 2^31 - 1 keys: a word for each would be 16 GiB.
  const std::vector<std::int32_t> seq_len{std::numeric_limits<std::int32_t>::max(), 1};
  Requests requests = requests_;
  requests.seq_len = View<const std::int32_t>(seq_len.data(), {2});
  const std::vector<std::int32_t> index{seq_len[0] - 2, seq_len[0] - 1, 0};
  const SelectionCounts counts = count_selection({View<const std::int32_t>(index.data(), {3, 1}), {}, {}}, requests);
  EXPECT_EQ(counts.attended, 3);
}

TEST_F(Validate, RefusesAPageSizeThatIsNone) {
  const std::vector<std::int32_t> index(3);
  const View<const std::int32_t> view(index.data(), {3, 1});
  EXPECT_THROW(static_cast<void>(count_selection({view, {}, SelectionSpace::cache_slot}, requests_, 0)), Error);
  EXPECT_EQ(count_selection({view, {}, SelectionSpace::request_position}, requests_, 0).attended, 3);
}

TEST_F(Validate, PaddingIsClean) {
  const SelectionCounts counts = count({0, 1, 0, 2, -1, -1}, {}, SelectionSpace::request_position);
  EXPECT_TRUE(counts.clean());
  EXPECT_EQ(counts.empty_rows, 1);
}

TEST_F(Validate, CountsNonFiniteKeysOfRequestsOnly) {
  const Geometry geometry{
      .num_heads = 1, .kv_lora_rank = 3, .qk_nope_head_dim = 2, .qk_rope_head_dim = 2, .v_head_dim = 2};
  const std::int64_t row_bytes = cache_row_bytes(CacheFormat::float32, geometry);
  Tensor memory(DType::float32, {10, geometry.latent_dim()});
  const View<float> rows = memory.view_as<float>();
  const CacheView cache{memory.data(), 5, 2, 2 * row_bytes, row_bytes};
  rows(0, 0) = std::numeric_limits<float>::quiet_NaN();  // nobody's
  rows(3, 0) = std::numeric_limits<float>::quiet_NaN();  // on request 0's second page, after its last key
  EXPECT_EQ(count_non_finite_keys(geometry, CacheFormat::float32, cache, requests_), 0);
  rows(9, 4) = std::numeric_limits<float>::infinity();  // the rope key of request 0's key 1
  rows(4, 1) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(count_non_finite_keys(geometry, CacheFormat::float32, cache, requests_), 2);
  EXPECT_THROW(static_cast<void>(count_non_finite_keys(geometry, CacheFormat::float32, cache, {})), Error);
}

}  // namespace
}  // namespace headrace
