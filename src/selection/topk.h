// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headrace::selection {

/// The k best of a row of scores that arrives in pieces, in memory that does not grow with the row. Higher scores win,
/// and of equal scores the lower index; -0 equals +0, and NaN ranks below everything. That is a total order, so the
/// result does not depend on the pieces. Expected time is linear in the row.
class TopK {
 public:
  /// A score and its index in one number: the better, the larger.
  using Entry = std::uint64_t;

  /// Entries that `entries` and `scratch` hold each.
  [[nodiscard]] static constexpr std::int64_t capacity(std::int64_t k) noexcept { return 2 * k; }

  /// @param k        at least 1
  /// @param entries  [capacity(k)], this row's own
  /// @param scratch  [capacity(k)], free between calls: one serves all rows of a thread
  TopK(std::int64_t k, Entry* entries, Entry* scratch) noexcept : k_(k), entries_(entries), scratch_(scratch) {}

  /// Scores of the indices [first, first + n), which are above all indices seen so far and below 2^31.
  void offer(const float* scores, std::int64_t n, std::int64_t first);
  /// Writes the best indices in ascending order and returns how many: k, or all where fewer were offered.
  std::int64_t finish(std::int32_t* indices);

 private:
  void prune();

  std::int64_t k_;
  Entry* entries_;
  Entry* scratch_;
  std::int64_t size_ = 0;
  Entry threshold_ = 0;  // only larger entries can still be among the best; every real entry is above 0
};

}  // namespace headrace::selection
