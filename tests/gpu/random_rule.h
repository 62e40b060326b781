// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headrace/selection.h"
#include "support/random.h"

namespace headrace::test {

/// A rule that covers none, few or some of the rows of requests of some hundred keys.
inline SelectionRule random_rule(Random& random) {
  switch (random.below(4)) {
    case 0:
      return SelectionRule::lightning(1 + random.below(150));
    case 1: {
      const std::int64_t pool = 1 + random.below(8);
      return SelectionRule::kpool(pool * (1 + random.below(100) / pool), pool, random.chance(0.5));
    }
    default:
      return SelectionRule::opaque();
  }
}

}  // namespace headrace::test
