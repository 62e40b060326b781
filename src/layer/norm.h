// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headrace/view.h"

namespace headrace::layer {

/// x = x / sqrt(mean(x^2) + epsilon) * weight for each row of x [T, N], in place. float32 or bfloat16, rows contiguous;
/// statistics in float64, each value rounded once.
/// @throws Error for shapes, dtypes or strides that do not fit
void rms_norm(AnyView x, View<const float> weight, double epsilon, int threads);

/// x = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias, likewise.
void layer_norm(AnyView x, View<const float> weight, View<const float> bias, double epsilon, int threads);

}  // namespace headrace::layer
