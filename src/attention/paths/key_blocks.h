// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "attention/arena.h"
#include "attention/mha/cpu.h"
#include "attention/paths/path.h"
#include "attention/tile_arithmetic.h"
#include "cache/requests.h"

namespace headrace::attention {

/// Makes a run of a request's keys ready for the MHA kernel: gathers their latents from the cache, up-projects them,
/// and leaves them as the tile arithmetic wants them.
template <class Tiles>
class KeyBlocks;

/// Keys and values stay where the up-projection left them, rounded to the compute dtype.
template <>
class KeyBlocks<FloatTiles> {
 public:
  /// @param length  keys a block may have, a multiple of kKeyTile
  KeyBlocks(Arena& arena, const Attention& attention, std::int64_t length);
  [[nodiscard]] mha::KeyBlock<float> make(const Call& call, const cache::Request& request, std::int64_t first,
                                          std::int64_t count) const;

 private:
  std::span<std::byte> latent_;    ///< [length, R] compute dtype
  std::span<float> rope_;          ///< [length, rope]
  std::span<float> up_projected_;  ///< [length, H, nope + v]
};

/// Keys and values are packed into pairs, a chunk of kChunk keys at a time.
template <>
class KeyBlocks<PairTiles> {
 public:
  KeyBlocks(Arena& arena, const Attention& attention, std::int64_t length);
  [[nodiscard]] mha::KeyBlock<bfloat16> make(const Call& call, const cache::Request& request, std::int64_t first,
                                             std::int64_t count) const;

 private:
  /// Long enough for the up-projection to run at full rate, short enough to be packed from the cache.
  static constexpr std::int64_t kChunk = 256;

  void pack_chunk(const Call& call, std::int64_t first_tile, std::int64_t count) const;

  std::int64_t tiles_;
  std::span<bfloat16> latent_;        ///< [kChunk, R]
  std::span<bfloat16> rope_;          ///< [kChunk, rope]
  std::span<bfloat16> up_projected_;  ///< [kChunk, H, nope + v]
  std::span<bfloat16> packed_nope_;   ///< [H, tiles] of [nope / 2, kKeyTile, 2]
  std::span<bfloat16> packed_rope_;   ///< [tiles] of [rope / 2, kKeyTile, 2]
  std::span<bfloat16> packed_value_;  ///< [H, tiles] of [kKeyTile / 2, v, 2]
};

}  // namespace headrace::attention
