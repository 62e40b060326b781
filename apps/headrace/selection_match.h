// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "headrace/indexer.h"

namespace headrace::app {

/// Compares the selections that another implementation recorded with our own scores.
///
/// A recorded position matches when its own score (its pool's, for k-pool) is at least our k-th score less 1e-6 of the
/// row's largest, and when the row selects as many positions as ours does. k is the number of keys (pools) that the
/// budget lets the row take. A position of the incomplete pool at the end has no score: it matches under a rule with a
/// tail. A position that the row cannot see never matches.
class SelectionMatcher {
 public:
  explicit SelectionMatcher(const IndexerGeometry& indexer) : indexer_(indexer) {}

  /// @param position  of the row in its request
  /// @param scores    of every key, or every complete pool, that the row sees
  /// @param recorded  positions in any order; negative entries are unused
  /// @param ours      the same
  /// @return whether both select the same positions
  bool add_row(std::int64_t position, std::span<const float> scores, std::span<const std::int32_t> recorded,
               std::span<const std::int32_t> ours);

  /// The share of recorded positions that match; 1 where nothing is recorded.
  [[nodiscard]] double share() const noexcept;
  /// Recorded positions that match though our own selection has others of equal score in their place.
  [[nodiscard]] std::int64_t ties() const noexcept { return ties_; }

 private:
  [[nodiscard]] bool matches(std::int64_t position, std::span<const float> scores, std::int64_t key,
                             double threshold) const;

  IndexerGeometry indexer_;
  std::int64_t recorded_ = 0;
  std::int64_t matching_ = 0;
  std::int64_t ties_ = 0;
};

}  // namespace headrace::app
