// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headrace/attention.h"
#include "headrace/validate.h"

namespace headrace::fuzz {

/// The contract's conditions and counts, written down a second time, entry by entry and as slowly as that takes.

/// Query tokens and keys of every request agree with each other and with the step's tokens.
[[nodiscard]] bool lengths_agree(const Requests& requests, std::int64_t tokens);

/// Every key [0, seq_len) of a request has a page of the cache. Lengths must agree.
[[nodiscard]] bool has_pages(const Inputs& inputs, std::int64_t request);

/// Whether `attend` has to take the inputs for a plan made from `batch`.
[[nodiscard]] bool must_attend(const Attention& attention, const Batch& batch, const Inputs& inputs);

/// What count_selection should count. Lengths must agree.
[[nodiscard]] SelectionCounts count_naively(const Inputs& inputs);

/// Keys of requests in one slot of the cache; every key must have a page.
[[nodiscard]] std::int64_t keys_in_slot(const Inputs& inputs, std::int64_t slot);

}  // namespace headrace::fuzz
