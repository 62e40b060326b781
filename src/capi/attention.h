// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "headrace/c_api.h"
#include "headrace/plan.h"

/// What plans are made of, from the caller's structures.
namespace headrace::capi {

// @throws Error for an unknown number or a field out of range
[[nodiscard]] Attention attention_of(const HrAttention* attention);
[[nodiscard]] Batch batch_of(const HrBatch* batch);
/// Null: none are stated.
[[nodiscard]] Limits limits_of(const HrLimits* limits);
/// Null: none are given.
[[nodiscard]] Hints hints_of(const HrHints* hints);
/// @throws Error naming `argument` unless so many threads may work, 0 standing for all
[[nodiscard]] int threads_of(const std::string& argument, std::int64_t threads);

}  // namespace headrace::capi
