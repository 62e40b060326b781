// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "attention/merge.h"
#include "cache/row_codec.h"
#include "headrace/attention.h"
#include "headrace/geometry.h"

namespace headrace::attention::mqa {

/// Latents gathered at once.
inline constexpr std::int64_t kKeyTile = 64;

/// One thread's memory for attend_row.
struct Scratch {
  std::span<float> keys;         ///< [kKeyTile, R + rope]
  std::span<float> scores;       ///< [H, kKeyTile]
  std::span<float> accumulated;  ///< [H, R]
  std::span<RowState> state;     ///< [H]
};

/// One query token over the keys of its mask: gathers kKeyTile latents at a time from the paged cache, scores them
/// against the absorbed query of every head, online softmax, times the latents.
///
/// Floor: 2 (2 R + rope) FLOPs a head and selected key at the rate of tile_products, and one cache row a selected key.
/// @param query  [H, R + rope]: the absorbed query and the rope query, float32
/// @param mask   words over the request's keys: which of them to attend to
/// @param sink   [H] or null
/// @param out    [1, H, R] attention over latents, divided by the sum, sink applied; rounded to the compute dtype
/// @param lse    out [H]
void attend_row(const Attention& attention, const Inputs& inputs, const cache::RowCodec& codec, std::int64_t request,
                const float* query, std::span<const std::uint64_t> mask, const float* sink, const Scratch& scratch,
                AnyView out, float* lse);

}  // namespace headrace::attention::mqa
