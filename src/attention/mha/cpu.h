// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "attention/merge.h"
#include "headrace/geometry.h"
#include "headrace/view.h"

namespace headrace::attention::mha {

/// Query rows a task works on at once, and keys a step of its inner loop.
inline constexpr std::int64_t kQueryTile = 64;
inline constexpr std::int64_t kKeyTile = 64;

/// A run of a request's keys, up-projected: what the kernel reads, where it lies. Values are rounded to the compute
/// dtype and held in float32.
struct KeyBlock {
  std::int64_t first = 0;  ///< position of the first key, a multiple of kKeyTile
  std::int64_t count = 0;
  View<const float> up_projected;  ///< [count, H, nope + v]: of each head K_nope, then V
  View<const float> rope_key;      ///< [count, rope], shared by all heads; empty for NoPE
};

/// A run of a request's query rows and what has been accumulated for them.
struct QuerySlice {
  std::int64_t first_position = 0;
  ConstAnyView q;  ///< [rows, H, nope + rope]
  View<const std::uint64_t>
      mask;                 ///< [rows, words]: bit j of row r, attends to key j; empty: all keys up to its position
  View<float> accumulated;  ///< [rows, H, v], not yet divided by the sum
  View<RowState> state;     ///< [rows, H]
};

/// Floats of scratch a thread needs.
[[nodiscard]] std::int64_t scratch_floats(const Geometry& geometry) noexcept;

/// Flash attention of a query slice over a key block, added to what the slice has accumulated: for every head and tile
/// of kQueryTile rows, scores over kKeyTile keys at a time, online softmax, times V. Tiles that no row attends to are
/// left out. Work is split over heads and query tiles.
///
/// Floor: 2 (qk + v) FLOPs a head for each row and key up to the diagonal, at the rate of tile_products; per task and
/// key tile it reads kKeyTile (nope + v) floats, which the query tile uses kQueryTile times.
/// @param scratch  [threads] pieces of scratch_floats() each
void attend_block(const Geometry& geometry, float scale, const KeyBlock& keys, const QuerySlice& slice,
                  View<float> scratch, int threads);

}  // namespace headrace::attention::mha
