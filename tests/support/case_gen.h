// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <rapidcheck.h>

#include "support/attention_case.h"

namespace headrace::test {

/// What a generated case must allow.
struct Demand {
  bool covered = false;            ///< a rule that covers every row, so that dense_mha can run
  bool by_position = false;        ///< a selection in request_position space
  std::size_t least_requests = 0;  ///< this many requests at least ...
  std::size_t most_requests = 4;   ///< ... and at most
};

/// Random cases over the whole range of what paths must take: heads 1 to 20, dims 16 to 256, rope 0, every cache
/// format, query lengths from 0, pages that straddle, gaps, sinks, both spaces. They shrink towards small ones.
rc::Gen<CaseSpec> case_specs(const Demand& demand);

}  // namespace headrace::test
