// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/host_device.h"

/// How top-k MQA on a GPU cuts a request's rows into tiles that walk over the union of their selections.
namespace headrace::attention::mqa {

/// Rows of the matrix products: a query and head each.
inline constexpr std::int64_t kTileRows = 64;
/// Keys that are attended to at once.
inline constexpr std::int64_t kKeyBlock = 64;
/// No tile reaches over a multiple of this position, so that prompts may be cut there without a change of bits.
inline constexpr std::int64_t kPositionBlock = 64;

/// Tiles that a position block has: tile u of a request starts at position kPositionBlock * (u / n) + group * (u % n).
[[nodiscard]] HEADRACE_HOST_DEVICE constexpr std::int64_t tiles_a_block(std::int64_t group) noexcept {
  return (kPositionBlock + group - 1) / group;
}

/// Neighbouring queries that share a tile: at least one, and no more than the tile's rows hold all heads of. Of three
/// heads 21 would fit, in four tiles a position block; then each may as well have 16.
[[nodiscard]] HEADRACE_HOST_DEVICE constexpr std::int64_t group_of(std::int64_t heads) noexcept {
  const std::int64_t most = heads < kTileRows ? kTileRows / heads : 1;
  const std::int64_t tiles = tiles_a_block(most);
  return (kPositionBlock + tiles - 1) / tiles;
}

/// The tile that holds a position.
[[nodiscard]] HEADRACE_HOST_DEVICE constexpr std::int64_t tile_of(std::int64_t position, std::int64_t group) noexcept {
  return position / kPositionBlock * tiles_a_block(group) + position % kPositionBlock / group;
}

/// Where a tile starts.
[[nodiscard]] HEADRACE_HOST_DEVICE constexpr std::int64_t tile_begin(std::int64_t tile, std::int64_t group) noexcept {
  return tile / tiles_a_block(group) * kPositionBlock + tile % tiles_a_block(group) * group;
}

/// Where it ends.
[[nodiscard]] HEADRACE_HOST_DEVICE constexpr std::int64_t tile_end(std::int64_t tile, std::int64_t group) noexcept {
  const std::int64_t block_end = (tile / tiles_a_block(group) + 1) * kPositionBlock;
  const std::int64_t end = tile_begin(tile, group) + group;
  return end < block_end ? end : block_end;
}

/// Tiles that `rows` neighbouring positions can touch at most.
[[nodiscard]] constexpr std::int64_t most_tiles(std::int64_t rows, std::int64_t group) noexcept {
  const std::int64_t in_blocks = ((rows + kPositionBlock - 2) / kPositionBlock + 1) * tiles_a_block(group);
  return rows < in_blocks ? rows : in_blocks;
}

}  // namespace headrace::attention::mqa
