// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headrace/view.h"

namespace headrace::device {

/// c[M, N] = a[M, K] * b[K, N], summed in float32.
///
/// The bits of a row of c are a function of that row of a and of b alone: every element is one sum over k in ascending
/// order (bfloat16 on AVX512_BF16: over pairs of k), whatever M, N, the strides, the row's place and the number of
/// threads are.
///
/// a and c have contiguous rows; b has one unit stride (`View::transposed` gives a transposed operand). a and b share a
/// dtype, float32 or bfloat16; c is float32 or bfloat16 (the float32 sum, rounded once). Sizes may be zero; c may not
/// overlap a or b.
/// @throws Error for shapes, strides or dtypes that do not fit
void matmul(ConstAnyView a, ConstAnyView b, AnyView c, int threads);

}  // namespace headrace::device
