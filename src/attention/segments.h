// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "headrace/plan.h"

namespace headrace::attention {

/// The rows of a planned segment that exist at lengths within the planned ones; none when begin >= end. Shorter lengths
/// move rows towards the start, so the first segment of a request also takes those below it: what lengths prove
/// covered stays covered.
[[nodiscard]] inline Segment clip_segment(const RequestPlan& planned, std::size_t number, std::int64_t context_len,
                                          std::int64_t seq_len) noexcept {
  Segment segment = planned.segments[number];
  segment.begin = number == 0 ? context_len : std::max(segment.begin, context_len);
  segment.end = std::min(segment.end, seq_len);
  return segment;
}

/// Rows that a planned segment has at most, at lengths within the planned ones.
[[nodiscard]] inline std::int64_t most_rows(const RequestPlan& planned, std::size_t number) noexcept {
  const Segment& segment = planned.segments[number];
  return std::min(planned.query_len, segment.end - (number == 0 ? 0 : segment.begin));
}

/// Keys of a request that a path has room for, for rows up to position `end`: none after them on a GPU, where a
/// selection is in positions; else all of them.
[[nodiscard]] inline std::int64_t most_keys(const Attention& attention, const Device& device, std::int64_t end,
                                            std::int64_t seq_len) noexcept {
  return device.cuda != nullptr && attention.space == SelectionSpace::request_position ? end : seq_len;
}

}  // namespace headrace::attention
