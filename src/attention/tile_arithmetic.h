// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/bf16_products.h"
#include "device/tile_products.h"
#include "headrace/dtype.h"

namespace headrace::attention {

/// Query rows, packed or of one head, that a kernel works on at once, and keys a step of its inner loop.
inline constexpr std::int64_t kQueryTile = 64;
inline constexpr std::int64_t kKeyTile = 64;

/// The two arithmetics of the CPU kernels. Both hold a tile of up to kKeyTile keys twice over: as the right operand of
/// the scores (`keys`, K = query-key dims, N = keys) and of the values (`values`, K = keys, N = value dims).

/// float32 operands as they lie: keys [n, ld], values [n, ld]. bfloat16 values are held rounded, in float32.
struct FloatTiles {
  using Element = float;

  /// Query-key dims a query row takes: products want no padding.
  [[nodiscard]] static constexpr std::int64_t padded(std::int64_t dims) noexcept { return dims; }

  static void scores(std::int64_t rows, std::int64_t keys, std::int64_t dims, const float* query, std::int64_t query_ld,
                     const float* key_tile, std::int64_t key_ld, float* scores, device::Update update) {
    device::products_nt(rows, keys, dims, query, query_ld, key_tile, key_ld, scores, kKeyTile, update);
  }

  /// accumulated [rows, dims] += weights [rows, keys] times values. `rounded` is not used.
  static void add_values(std::int64_t rows, std::int64_t keys, std::int64_t dims, const float* weights,
                         const float* values, std::int64_t value_ld, float* accumulated, std::int64_t accumulated_ld,
                         bfloat16* /*rounded*/) {
    device::products_nn_add(rows, dims, keys, weights, kKeyTile, values, value_ld, accumulated, accumulated_ld);
  }
};

/// bfloat16 operands in pairs (see device/bf16_products.h): keys [dims / 2, kKeyTile, 2], values [keys / 2, dims, 2].
/// Softmax weights are rounded to bfloat16 before they meet the values.
struct PairTiles {
  using Element = bfloat16;

  [[nodiscard]] static constexpr std::int64_t padded(std::int64_t dims) noexcept { return (dims + 1) / 2 * 2; }

  static void scores(std::int64_t rows, std::int64_t keys, std::int64_t dims, const bfloat16* query,
                     std::int64_t query_ld, const bfloat16* key_tile, std::int64_t key_ld, float* scores,
                     device::Update update) {
    if (update == device::Update::overwrite) {
      std::fill_n(scores, rows * kKeyTile, 0.0F);
    }
    device::bf16_products_add(rows, keys, padded(dims), query, query_ld, key_tile, key_ld, scores, kKeyTile);
  }

  /// @param rounded  scratch for kQueryTile x kKeyTile weights
  static void add_values(std::int64_t rows, std::int64_t keys, std::int64_t dims, float* weights,
                         const bfloat16* values, std::int64_t value_ld, float* accumulated, std::int64_t accumulated_ld,
                         bfloat16* rounded) {
    for (std::int64_t r = 0; r < rows; ++r) {
      std::fill(weights + r * kKeyTile + keys, weights + r * kKeyTile + padded(keys), 0.0F);
    }
    device::round_to_bf16(rows * kKeyTile, weights, rounded);
    device::bf16_products_add(rows, dims, padded(keys), rounded, kKeyTile, values, value_ld, accumulated,
                              accumulated_ld);
  }
};

/// Whether a compute dtype runs on PairTiles on this machine; FloatTiles otherwise.
[[nodiscard]] inline bool uses_pairs(DType compute) noexcept {
  return compute == DType::bfloat16 && device::has_bf16_products();
}

}  // namespace headrace::attention
