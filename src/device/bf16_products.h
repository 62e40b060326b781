// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headrace/dtype.h"

namespace headrace::device {

/// Matrix products of bfloat16 tiles with float32 sums for one thread, on CPUs that have instructions for them
/// (AVX512_BF16): twice the rate of float32. The instructions multiply pairs of neighbouring k, so the right operand of
/// a product is packed into pairs first: element (k, n) of a [K, N] operand stands at [k / 2][n][k % 2], and an odd
/// last k is padded with zeros. HEADRACE_DISABLE_AVX512_BF16=1 in the environment makes this false, for tests and bug
/// reports; nothing else in this file may be called where it is false.
[[nodiscard]] bool has_bf16_products() noexcept;

/// Values of a packed [K, N] operand.
[[nodiscard]] constexpr std::int64_t packed_pairs(std::int64_t K, std::int64_t N) noexcept {
  return (K + 1) / 2 * 2 * N;
}

/// Packs a [K, N] operand given as it is: row k holds its N values (a key's value dims, say).
/// @param rows  [K, N], `stride` values from a row to the next
/// @param out   [(K + 1) / 2, N, 2]
void pack_pairs(std::int64_t K, std::int64_t N, const bfloat16* rows, std::int64_t stride, bfloat16* out);

/// Packs a [K, N] operand given by its transpose: row n holds its K values (a key's query-key dims, say).
/// @param rows     [N, K], `stride` values from a row to the next
/// @param columns  N of the packed operand, at least N; columns from N on are not written
/// @param out      [(K + 1) / 2, columns, 2]
void pack_pairs_transposed(std::int64_t K, std::int64_t N, const bfloat16* rows, std::int64_t stride,
                           std::int64_t columns, bfloat16* out);

/// c[m, n] += sum over k of a[m, k] * b[k, n]. The order in which an element is summed depends on K alone.
/// @param a  [M, K] with K even (pad with zeros), `lda` values from a row to the next
/// @param b  packed [K / 2, ldb, 2], of which the first N columns are used
void bf16_products_add(std::int64_t M, std::int64_t N, std::int64_t K, const bfloat16* a, std::int64_t lda,
                       const bfloat16* b, std::int64_t ldb, float* c, std::int64_t ldc);

/// out[i] = bfloat16(values[i]), rounded to nearest even.
void round_to_bf16(std::int64_t n, const float* values, bfloat16* out);

}  // namespace headrace::device
