// SPDX-License-Identifier: Apache-2.0
#include "selection_match.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace headrace::app {
namespace {

constexpr double kTieTolerance = 1e-6;

/// The entries in use, ascending, each once.
std::vector<std::int64_t> positions_of(std::span<const std::int32_t> entries) {
  std::vector<std::int64_t> positions;
  for (const std::int32_t entry : entries) {
    if (entry >= 0) {
      positions.push_back(entry);
    }
  }
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

/// The k-th largest score less the tolerance for ties; everything passes where the budget takes every key.
double threshold_of(std::span<const float> scores, std::int64_t k) {
  if (static_cast<std::int64_t>(scores.size()) <= k) {
    return -std::numeric_limits<double>::infinity();
  }
  std::vector<float> sorted(scores.begin(), scores.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  return static_cast<double>(sorted[static_cast<std::size_t>(k - 1)]) -
         kTieTolerance * std::abs(static_cast<double>(sorted.front()));
}

}  // namespace

bool SelectionMatcher::add_row(std::int64_t position, std::span<const float> scores,
                               std::span<const std::int32_t> recorded, std::span<const std::int32_t> ours) {
  const std::vector<std::int64_t> theirs = positions_of(recorded);
  const std::vector<std::int64_t> own = positions_of(ours);
  recorded_ += static_cast<std::int64_t>(theirs.size());
  if (theirs.size() != own.size()) {
    return false;
  }
  const double threshold = threshold_of(scores, indexer_.topk / indexer_.pool);
  for (const std::int64_t key : theirs) {
    if (matches(position, scores, key, threshold)) {
      ++matching_;
      ties_ += std::binary_search(own.begin(), own.end(), key) ? 0 : 1;
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

double SelectionMatcher::share() const noexcept {
  return recorded_ == 0 ? 1.0 : static_cast<double>(matching_) / static_cast<double>(recorded_);
}

}  // namespace headrace::app
