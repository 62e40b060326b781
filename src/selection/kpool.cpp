// SPDX-License-Identifier: Apache-2.0
#include "selection/kpool.h"

namespace headrace::selection {

std::int64_t write_row(const Candidates& candidates, std::span<const std::int32_t> chosen, std::int64_t position,
                       View<std::int32_t> row) {
  std::int64_t column = 0;
  const auto append = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      row(column++) = static_cast<std::int32_t>(p);
    }
  };
  for (const std::int64_t c : chosen) {
    append(c * candidates.pool, (c + 1) * candidates.pool);
  }
  if (candidates.tail) {
    append(candidates.among(position + 1) * candidates.pool, position + 1);
  }
  for (std::int64_t i = column; i < row.dim(0); ++i) {
    row(i) = -1;
  }
  return column;
}

}  // namespace headrace::selection
