// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headrace/indexer.h"

namespace headrace::selection {

/// What an indexer ranks: pools of `pool` keys, of which a row takes the `budget` best. The lightning indexer is the
/// case of pools of one key. Candidate c holds the positions [c * pool, (c + 1) * pool) of the request.
struct Candidates {
  std::int64_t pool = 1;
  std::int64_t budget = 0;
  bool tail = false;

  [[nodiscard]] static Candidates of(const IndexerGeometry& indexer) noexcept {
    return indexer.kpool ? Candidates{indexer.pool, indexer.topk / indexer.pool, indexer.tail}
                         : Candidates{1, indexer.topk, false};
  }
  /// Complete pools among the first `keys` keys. A row sees a pool when it sees the pool's last key.
  [[nodiscard]] std::int64_t among(std::int64_t keys) const noexcept { return keys / pool; }
  /// The position whose cache row holds the candidate's key.
  [[nodiscard]] std::int64_t key_position(std::int64_t candidate) const noexcept { return (candidate + 1) * pool - 1; }
};

}  // namespace headrace::selection
