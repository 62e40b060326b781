// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headrace/indexer.h"
#include "headrace/selection.h"

namespace headrace::app {

/// The keys at positions [0, last] that a row's entries name, ascending, each once.
[[nodiscard]] std::vector<std::int32_t> keys_in(std::span<const std::int32_t> entries, std::int64_t last);

/// What came of comparing a recorded selection with our own scores. Covered rows are left out: the contract reads no
/// selection there.
struct SelectionMatch {
  std::int64_t rows = 0;
  std::int64_t positions = 0;  ///< recorded
  std::int64_t matching = 0;
  std::int64_t could_miss = 0;      ///< were they chosen as badly as can be: in each row as many as it leaves out keys
  std::int64_t ties = 0;            ///< of those, ones in whose place our own selection has others of equal score
  std::int64_t undecided_rows = 0;  ///< whose scores do not say what to select

  /// The share of recorded positions that match; 1 where nothing is recorded.
  [[nodiscard]] double share() const noexcept;
  /// Whether the scores said what to select. A dead indexer gives equal scores, and then every selection is one of
  /// them.
  [[nodiscard]] bool decided() const noexcept;

  /// Whether few enough positions miss of those that could. A row that leaves out one key of many matches but for one
  /// position whatever its scores are.
  [[nodiscard]] bool beats_chance() const noexcept;

  /// The largest share of undecided rows, and of positions that match by a tie. Recordings of right layers have ties
  /// too, where a score is 0 since all its heads' are: about one position in 400.
  static constexpr double kMostUndecided = 0.05;
  /// The largest share of positions that miss, of those that could; one always may.
  static constexpr double kMostMissed = 0.25;
};

/// Compares the selections that another implementation recorded with our own scores.
///
/// A recorded position matches when its own score (its pool's, for k-pool) is at least our k-th score less 1e-6 of the
/// row's largest, and when the row selects as many positions as ours does. k is the number of keys (pools) that the
/// budget lets the row take. A position of the incomplete pool at the end has no score: it matches under a rule with a
/// tail. A position that the row cannot see never matches. A row is undecided where fewer than half of its k scores are
/// above the k-th by more than that tolerance.
class SelectionMatcher {
 public:
  explicit SelectionMatcher(const IndexerGeometry& indexer) : indexer_(indexer), rule_(indexer.rule()) {}

  /// @param position  of the row in its request
  /// @param scores    of every key, or every complete pool, that the row sees
  /// @param recorded  positions in any order; negative entries are unused
  /// @param ours      the same
  /// @return whether both select the same positions
  bool add_row(std::int64_t position, std::span<const float> scores, std::span<const std::int32_t> recorded,
               std::span<const std::int32_t> ours);

  [[nodiscard]] const SelectionMatch& result() const noexcept { return result_; }

 private:
  [[nodiscard]] bool matches(std::int64_t position, std::span<const float> scores, std::int64_t key,
                             double threshold) const;

  IndexerGeometry indexer_;
  SelectionRule rule_;
  SelectionMatch result_;
};

}  // namespace headrace::app
