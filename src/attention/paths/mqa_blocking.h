// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "attention/arena.h"
#include "attention/mqa/union_list.h"
#include "attention/paths/path.h"

/// How large the pieces of topk_mqa's work on a GPU are, what memory they take and what they cost. Nothing here needs a
/// GPU.
namespace headrace::attention {

/// Keys of a row that lists have room for: as many as the rule says that a row attends to, and somewhat more; none
/// where it does not say, and there is room for all keys. However wide a selection is, its rows keep the rule's word or
/// lose keys (docs/contract.md).
[[nodiscard]] std::optional<std::int64_t> most_row_keys(const SelectionRule& rule) noexcept;

/// Keys that a list must have room for, in whole key blocks: as many as the rows of a tile attend to together.
/// @param keys  that the tile's request has at most
[[nodiscard]] std::int64_t list_capacity(const SelectionRule& rule, std::int64_t group, std::int64_t keys) noexcept;

/// Whether a request's keys are converted to bfloat16 rows in the workspace first: where the kernel does not read their
/// format (float32), and where quantised ones are read so often, and fit, that converting them once is cheaper than
/// converting them at each reading.
/// @param row_count  rows of the request on this path, at most
/// @param keys       of the request, at most
[[nodiscard]] bool converts_keys(const Attention& attention, const Blocking& blocking, std::int64_t row_count,
                                 std::int64_t keys) noexcept;

/// Tiles that the rows of all requests can touch at most, however they are divided among the requests.
[[nodiscard]] std::int64_t all_tiles(const Attention& attention, const Extents& extents) noexcept;

/// Whether the lists of all tiles have room at once, so that all are there when the call is over.
[[nodiscard]] bool has_all_lists(const Attention& attention, const Extents& extents, const Blocking& blocking);

/// Whether no row of the batch takes another path and all tiles have room at once. Queries then lie as the tokens do
/// and nothing is copied; otherwise the rows of tile t are slot rows group * t and following.
[[nodiscard]] bool rows_are_tokens(const Attention& attention, const Extents& extents, const Blocking& blocking);

/// The workspace of a call, cut into its arrays.
struct MqaMemory {
  MqaMemory(PathArenas& arenas, const Attention& attention, const Extents& extents, const Blocking& blocking);

  std::int64_t group = 0;
  std::int64_t tiles = 0;      ///< of a slice
  std::int64_t capacity = 0;   ///< keys of a list
  std::int64_t rows = 0;       ///< of queries
  bool has_all_lists = false;  ///< tile t of the call has list t; else tile t of a slice
  bool rows_are_tokens = false;

  std::int32_t* counter = nullptr;
  mqa::UnionTile* union_tiles = nullptr;
  std::int32_t* list_keys = nullptr;
  std::uint64_t* list_masks = nullptr;
  std::uint64_t* page_map = nullptr;  ///< cache_slot space only
  std::int64_t page_map_entries = 0;
  bfloat16* converted = nullptr;  ///< [context_block, R + rope]; only where keys are converted
  bfloat16* query = nullptr;      ///< [rows, H, R]: absorbed queries, and what was attended to in their place
  std::byte* slots = nullptr;     ///< copies of queries [rows, H, nope], later of values [rows, H, v]; slot rows only
};

/// Everything at once where it fits; else slices of tiles, as many as fit, of the keys of some requests.
/// Blocking::query_slice counts the rows of whole tiles, those that a tile may lack included; context_block the
/// converted keys that are held at once, and 0 where none are converted. Keys that must be converted have room for at
/// least those of the longest request; others that do not fit are not converted.
[[nodiscard]] Blocking choose_mqa_blocking(const Attention& attention, const Extents& extents, std::int64_t budget);

/// The work for rows [begin, end) of a request, what tiles waste included.
[[nodiscard]] Work count_mqa_work(const Attention& attention, std::int64_t begin, std::int64_t end,
                                  std::int64_t query_slice);

}  // namespace headrace::attention
