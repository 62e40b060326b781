// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "headrace/view.h"

namespace headrace::device {

/// c[M, N] = a[M, K] * b[K, N], accumulated in float32, through oneDNN. The bits do not depend on the number of
/// threads. Every view is a matrix with one unit stride (`View::transposed` gives a transposed operand); a and b share
/// a dtype, float32 or bfloat16; c is float32 or bfloat16 (rounded once). Sizes may be zero.
/// @throws Error for shapes or dtypes that do not fit
void matmul(ConstAnyView a, ConstAnyView b, AnyView c, int threads);

}  // namespace headrace::device
