// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "attention/mha/bit_mask_cuda.h"
#include "attention/mqa/tiles.h"
#include "device/cuda/stream.h"
#include "headrace/requests.h"
#include "headrace/selection.h"
#include "headrace/view.h"

/// Union lists on a GPU: for each tile of neighbouring rows the distinct keys that any of them attends to, ascending,
/// and which row attends to which. Views, but not the structures that hold them, are on the device's memory; calls
/// queue work on a stream, allocate nothing and can be captured in a graph.
namespace headrace::attention::mqa {

/// Rows of a request that take the path: those at positions [begin, end), clipped to the new tokens.
struct PathRows {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

/// A tile that lists are made for: of a request's tiles that hold rows of the path, number `tile`.
struct TileReference {
  std::int32_t request = 0;
  std::int32_t tile = 0;
};

/// What a tile is, found from the exact lengths.
struct UnionTile {
  std::int32_t request = 0;
  std::int32_t token = 0;   ///< of its first row
  std::int32_t rows = 0;    ///< neighbouring tokens; 0 where the request has no such tile
  std::int32_t blocks = 0;  ///< of kKeyBlock keys
};

/// The lists of some tiles. Of tile t, key i is keys[t, i]; bit j of masks[t, b, g] says whether row g of the tile
/// attends to key kKeyBlock * b + j. In the last block what follows the keys is -1, and 0 in the masks; rows that a
/// tile lacks have no bits. What lies beyond a tile's blocks is anything.
struct UnionLists {
  View<UnionTile> tiles;      ///< [tiles]
  View<std::int32_t> keys;    ///< [tiles, capacity], contiguous; capacity is a multiple of kKeyBlock
  View<std::uint64_t> masks;  ///< [tiles, capacity / kKeyBlock, group], contiguous
};

/// What lists are made from.
struct UnionPass {
  SelectionRule rule;               ///< rows it covers attend to every causal key, and their selection is not read
  Selection selection;              ///< [T, width]; empty where the rule covers every row
  Requests requests;                ///< exact query_start and seq_len; the block table is not read
  View<const PathRows> rows;        ///< [B]
  View<const TileReference> tiles;  ///< [tiles]
  std::int64_t group = 0;           ///< rows a tile, 1 to 64
  std::int64_t tokens = 0;          ///< T: rows of tokens beyond are no rows, whatever the lengths say
  std::int64_t keys_bound = 0;      ///< no request has more keys
  std::int64_t window_keys = 0;     ///< keys of a row that are dealt with at once; 0: as many as shared memory allows
  UnionLists lists;
  cuda::PageMap page_map;           ///< cache_slot space only
  std::int64_t page_size = 0;       ///< likewise
  std::int32_t* counter = nullptr;  ///< set to 0 for a later kernel where there are tiles, or null
};

/// Writes the lists. Keys beyond a tile's capacity would be left out: the caller reserves as many as the rows of a tile
/// can attend to together. load_union_lists() has been called for the device.
/// @throws Error where shapes do not fit
void build_union_lists(const UnionPass& pass, Stream stream);

/// Loads the kernels' code and lets them have their shared memory.
void load_union_lists();

}  // namespace headrace::attention::mqa
