// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headrace/indexer.h"
#include "headrace/view.h"

/// What `select` of the processor and that of a GPU check alike.
namespace headrace::selection {

/// The tokens of a range that a step has. @throws Error unless 0 <= begin <= end
[[nodiscard]] TokenRange within_step(TokenRange rows, std::int64_t tokens);

/// Throws Error unless a selection's index has a row for each token and room for what a rule selects.
void expect_columns(View<const std::int32_t> index, std::int64_t tokens, std::int64_t width);

}  // namespace headrace::selection
