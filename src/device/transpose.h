// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headrace/dtype.h"

namespace headrace::device {

/// out[n, m] = in[m, n] for m < M and n < N, as float32. Vectorised with Highway, dispatched at run time.
/// @param in_ld   values from a row of `in` to the next
/// @param out_ld  values from a row of `out` to the next
void transpose(std::int64_t M, std::int64_t N, const float* in, std::int64_t in_ld, float* out, std::int64_t out_ld);
void transpose(std::int64_t M, std::int64_t N, const bfloat16* in, std::int64_t in_ld, float* out, std::int64_t out_ld);

}  // namespace headrace::device
