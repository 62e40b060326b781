// SPDX-License-Identifier: Apache-2.0
#include "selection_match.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <vector>

namespace headrace::app {
namespace {

constexpr double kTieTolerance = 1e-6;

constexpr std::int64_t kAnyPosition = std::numeric_limits<std::int32_t>::max();

/// A row's k-th largest score, give or take what counts as a tie.
struct Threshold {
  double least = -std::numeric_limits<double>::infinity();  ///< that matches; all do where the budget takes every key
  bool undecided = false;
};

Threshold threshold_of(std::span<const float> scores, std::int64_t k) {
  if (static_cast<std::int64_t>(scores.size()) <= k) {
    return {};
  }
  std::vector<float> sorted(scores.begin(), scores.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const double kth = static_cast<double>(sorted[static_cast<std::size_t>(k - 1)]);
  const double tolerance = kTieTolerance * std::abs(static_cast<double>(sorted.front()));
  const auto above = std::count_if(sorted.begin(), sorted.begin() + k,
                                   [&](float score) { return static_cast<double>(score) > kth + tolerance; });
  // A k-th score that others do not equal decides, also where k is 1.
  const bool alone = static_cast<double>(sorted[static_cast<std::size_t>(k)]) < kth - tolerance;
  return {kth - tolerance, !alone && 2 * above < k};
}

}  // namespace

std::vector<std::int32_t> keys_in(std::span<const std::int32_t> entries, std::int64_t last) {
  std::vector<std::int32_t> keys;
  std::copy_if(entries.begin(), entries.end(), std::back_inserter(keys),
               [&](std::int32_t entry) { return entry >= 0 && entry <= last; });
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

bool SelectionMatcher::add_row(std::int64_t position, std::span<const float> scores,
                               std::span<const std::int32_t> recorded, std::span<const std::int32_t> ours) {
  const std::vector<std::int32_t> theirs = keys_in(recorded, kAnyPosition);
  const std::vector<std::int32_t> own = keys_in(ours, kAnyPosition);
  if (rule_.covers(position)) {
    return theirs == own;
  }
  const Threshold threshold = threshold_of(scores, indexer_.topk / indexer_.pool);
  ++result_.rows;
  result_.undecided_rows += threshold.undecided ? 1 : 0;
  const auto selected = static_cast<std::int64_t>(theirs.size());
  result_.positions += selected;
  result_.could_miss += std::clamp<std::int64_t>(position + 1 - selected, 0, selected);
  if (theirs.size() != own.size()) {
    return false;
  }
  for (const std::int32_t key : theirs) {
    if (matches(position, scores, key, threshold.least)) {
      ++result_.matching;
      result_.ties += std::binary_search(own.begin(), own.end(), key) ? 0 : 1;
    }
  }
  return theirs == own;
}

bool SelectionMatcher::matches(std::int64_t position, std::span<const float> scores, std::int64_t key,
                               double threshold) const {
  if (key > position) {
    return false;
  }
  const auto candidate = static_cast<std::size_t>(key / indexer_.pool);
  return candidate < scores.size() ? static_cast<double>(scores[candidate]) >= threshold : indexer_.tail;
}

double SelectionMatch::share() const noexcept {
  return positions == 0 ? 1.0 : static_cast<double>(matching) / static_cast<double>(positions);
}

bool SelectionMatch::decided() const noexcept {
  return static_cast<double>(undecided_rows) <= kMostUndecided * static_cast<double>(rows) &&
         static_cast<double>(ties) <= kMostUndecided * static_cast<double>(positions);
}

bool SelectionMatch::beats_chance() const noexcept {
  return static_cast<double>(positions - matching) <= std::max(1.0, kMostMissed * static_cast<double>(could_miss));
}

}  // namespace headrace::app
