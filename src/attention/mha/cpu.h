// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/merge.h"
#include "attention/tile_arithmetic.h"
#include "headrace/geometry.h"
#include "headrace/view.h"

namespace headrace::attention::mha {

/// A run of a request's keys, up-projected and cut into tiles of kKeyTile: what the kernel reads, where it lies.
/// Element is float or bfloat16; tile_arithmetic.h says how each holds a tile.
template <class Element>
struct KeyBlock {
  /// A tile for each head: at data + head * head_stride + tile * tile_stride, with rows `ld` apart.
  struct Operand {
    const Element* data = nullptr;
    std::int64_t head_stride = 0;
    std::int64_t tile_stride = 0;
    std::int64_t ld = 0;

    [[nodiscard]] const Element* tile(std::int64_t head, std::int64_t index) const noexcept {
      return data + head * head_stride + index * tile_stride;
    }
  };

  std::int64_t first = 0;  ///< position of the first key, a multiple of kKeyTile
  std::int64_t count = 0;
  Operand nope;
  Operand rope;  ///< shared by all heads (head_stride 0); unused for NoPE
  Operand value;
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

/// Bytes of scratch a thread needs.
[[nodiscard]] std::int64_t scratch_bytes(const Geometry& geometry) noexcept;

/// Flash attention of a query slice over a key block, added to what the slice has accumulated: for every head and tile
/// of kQueryTile rows, scores over kKeyTile keys at a time, online softmax, times V. Tiles that no row attends to are
/// left out. Work is split over heads and query tiles.
///
/// Floor: 2 (qk + v) FLOPs a head for each row and key up to the diagonal, at the rate of the tile products; per task
/// and key tile it reads kKeyTile (nope + v) values, which the query tile uses kQueryTile times.
/// @param scratch  [threads, scratch_bytes()]
template <class Tiles>
void attend_block(const Geometry& geometry, float scale, const KeyBlock<typename Tiles::Element>& keys,
                  const QuerySlice& slice, View<std::byte> scratch, int threads);

}  // namespace headrace::attention::mha
