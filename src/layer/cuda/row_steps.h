// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/cuda/stream.h"
#include "headrace/view.h"

/// What a layer does on a GPU between its products, row by row: norms, rope, and the factor of the indexer's head
/// weights. Everything is on the device's memory; calls queue work on a stream, allocate nothing and can be captured in
/// a graph. Each value is computed in float32 and rounded once.
namespace headrace::layer::cuda {

/// Loads the kernels onto the current device, so that no step is the first to wait for it. @throws Error
void load_row_steps();

/// x = x / sqrt(mean(x^2) + epsilon) * weight for each row of x [T, N], in place.
/// @param x  rows contiguous, N, addresses and the row stride multiples of 8 values
/// @throws Error for shapes or strides that do not fit
void rms_norm(View<bfloat16> x, View<const float> weight, double epsilon, Stream stream);

/// x = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias, likewise.
void layer_norm(View<bfloat16> x, View<const float> weight, View<const float> bias, double epsilon, Stream stream);

/// Cosine and sine of every token's pairs: table[t, i] = (cos, sin) of positions[t] * inverse[i], times `factor`.
/// Angles are float64, as on the processor.
/// @param table  [T, pairs, 2] contiguous
void rope_table(View<const std::int32_t> positions, View<const double> inverse, double factor, View<float> table,
                Stream stream);

/// Rotates x [T, heads, 2 * pairs] in place, the last dimension contiguous.
/// @param interleave  pairs are (0, 1), (2, 3), ...; else (0, pairs), (1, pairs + 1), ...
void rotate(View<bfloat16> x, View<const float> table, bool interleave, Stream stream);

/// weight[t, h] = product[t, h] * factor.
/// @param product  [T, at least as many columns as `weight`]
/// @param weight   [T, heads]
void scale_head_weights(View<const float> product, double factor, View<float> weight, Stream stream);

}  // namespace headrace::layer::cuda
