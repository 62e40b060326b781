// SPDX-License-Identifier: Apache-2.0
#include "selection/token_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "headrace/error.h"

namespace headrace::selection {

TokenRange within_step(TokenRange rows, std::int64_t tokens) {
  if (rows.begin < 0 || rows.end < rows.begin) {
    throw Error("rows", "tokens [begin, end) with 0 <= begin <= end", fmt::format("[{}, {})", rows.begin, rows.end));
  }
  return {std::min(rows.begin, tokens), std::min(rows.end, tokens)};
}

void expect_columns(View<const std::int32_t> index, std::int64_t tokens, std::int64_t width) {
  index.expect("selection index", {tokens, -1});
  if (index.dim(1) < width) {
    throw Error("selection index", fmt::format("at least {} columns", width), std::to_string(index.dim(1)));
  }
}

}  // namespace headrace::selection
