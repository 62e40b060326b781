// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "attention/arena.h"
#include "attention/merge.h"
#include "attention/tile_arithmetic.h"
#include "cache/requests.h"
#include "cache/row_codec.h"
#include "headrace/attention.h"

namespace headrace::attention::mqa {

/// Neighbouring query rows that may share a tile: as many as fill kQueryTile rows with their heads, a power of two, so
/// that tiles (which start at multiples of it in the request's own positions) never straddle a multiple of kQueryTile.
[[nodiscard]] std::int64_t rows_a_tile(std::int64_t num_heads) noexcept;

/// Whether `rows` neighbouring query rows cost less walking the `together` keys of their union than each walking its
/// own, `apart` keys in all: a key walked costs its gathering, and a product for every row and head that walks it.
[[nodiscard]] bool packing_pays(double together, double apart, std::int64_t rows, std::int64_t num_heads) noexcept;

/// Up to rows_a_tile() neighbouring query rows of one request.
template <class Element>
struct RowTile {
  std::int64_t rows = 0;
  const Element* query = nullptr;  ///< [rows, H, query_ld]: absorbed query, rope query, zeros
  std::int64_t query_ld = 0;
  View<const std::uint64_t> masks;  ///< [rows, words] over the request's keys
};

/// What becomes of the rows of a tile.
struct RowResults {
  AnyView attended;  ///< [rows, H, R] attention over latents, divided by the sum, sink applied; in the compute dtype
  float* lse = nullptr;  ///< [rows, H]
};

/// One thread's memory.
template <class Tiles>
class Scratch {
 public:
  /// @param words  mask words of the longest request
  Scratch(Arena& arena, const Geometry& geometry, std::int64_t words);

  std::span<std::uint64_t> union_mask;             ///< [words]
  std::span<typename Tiles::Element> latents;      ///< [kKeyTile, R + rope] as gathered
  std::span<typename Tiles::Element> packed_keys;  ///< pairs only
  std::span<typename Tiles::Element> packed_values;
  std::span<float> scores;       ///< [rows of a tile, kKeyTile]
  std::span<bfloat16> rounded;   ///< as scores; pairs only
  std::span<float> accumulated;  ///< [rows of a tile, R]
  std::span<RowState> state;     ///< [rows of a tile]
};

/// The rows of a tile over the keys of their masks. Where it costs less, the rows walk the union of their selections
/// together, each masked to its own: a latent is gathered once for all of them. Otherwise each walks its own.
/// Per kKeyTile keys: gather latents from the paged cache, score them against the absorbed queries of every row and
/// head, online softmax, times the latents.
///
/// Floor: 2 (2 R + rope) FLOPs a head and selected key at the rate of the tile products, and one cache row a key
/// walked.
/// @param sink  [H] or null
template <class Tiles>
void attend_rows(const Attention& attention, const Inputs& inputs, const cache::RowCodec& codec, std::int64_t request,
                 const RowTile<typename Tiles::Element>& tile, const float* sink, const Scratch<Tiles>& scratch,
                 const RowResults& results);

}  // namespace headrace::attention::mqa
