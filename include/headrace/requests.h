// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headrace/view.h"

namespace headrace {

/// The requests of a step with their exact lengths and where their keys lie, shared by every stage.
///   query_start [B + 1]: tokens [query_start[b], query_start[b + 1]) belong to request b
///   seq_len     [B]: keys of request b, this step's included; its query rows are at the last positions
///   block_table [B, max_pages]: page of the request's keys [i * page_size, (i + 1) * page_size); free row stride
struct Requests {
  View<const std::int32_t> query_start;
  View<const std::int32_t> seq_len;
  View<const std::int32_t> block_table;
};

}  // namespace headrace
