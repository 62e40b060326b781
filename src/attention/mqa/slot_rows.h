// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "attention/mqa/union_list.h"
#include "device/cuda/stream.h"
#include "headrace/view.h"

/// Rows in the order of tiles: slot row group * t + r is row r of tile t. Views are on the device's memory; calls queue
/// work on a stream, allocate nothing and can be captured in a graph. Rows of heads are copied 16 bytes at a time where
/// the tokens' address and strides are multiples of that, and else element by element. Slots lie at multiples of it.
namespace headrace::attention::mqa {

/// Copies the first columns of the tiles' tokens to slot rows; those that a tile lacks become zeros.
/// @param tiles  [tiles], as build_union_lists has written them
/// @param from   [T, H, columns or more]
/// @param slots  [tiles * group, H, columns], contiguous
/// @throws Error where shapes, strides or addresses do not fit
void copy_to_slots(View<const UnionTile> tiles, std::int64_t group, View<const bfloat16> from, View<bfloat16> slots,
                   Stream stream);

/// Copies slot rows to the tiles' tokens; other tokens stay as they are.
/// @param slots  [tiles * group, H, columns], contiguous
/// @param to     [T, H, columns] of the same dtype
void copy_from_slots(View<const UnionTile> tiles, std::int64_t group, ConstAnyView slots, const AnyView& to,
                     Stream stream);

/// Loads the kernels' code, which a first call that is captured must not do.
void load_slot_rows();

}  // namespace headrace::attention::mqa
