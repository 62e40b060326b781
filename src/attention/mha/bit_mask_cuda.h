// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/mha/sm90.h"
#include "device/cuda/stream.h"
#include "headrace/cache.h"
#include "headrace/requests.h"
#include "headrace/selection.h"
#include "headrace/view.h"

/// Selections turned into bit masks on a GPU. Views, but not the structures that hold them, are on the device's memory;
/// calls queue work on a stream, allocate nothing and can be captured in a graph.
namespace headrace::attention::cuda {

/// For selections in cache_slot space: at which block of a request a page lies, as a hash table a request.
struct PageMap {
  View<std::uint64_t> entries;  ///< [B, page_map_entries(...)], contiguous; scratch for build_page_map
};

/// Entries a request needs whose keys are at most `seq_len_bound`: twice its pages, so that searches are short.
[[nodiscard]] constexpr std::int64_t page_map_entries(std::int64_t seq_len_bound, std::int64_t page_size) noexcept {
  return 2 * std::max<std::int64_t>(1, (seq_len_bound + page_size - 1) / page_size);
}

/// Fills the map. A page that occurs twice counts where it occurs first; pages outside the cache are left out.
void build_page_map(const CacheView& cache, const Requests& requests, const PageMap& map, Stream stream);

/// What a mask is made from.
struct MaskPass {
  SelectionRule rule;   ///< rows it covers see every causal key, and their selection is not read
  Selection selection;  ///< [T, width]; empty where the rule covers every row
  Requests requests;    ///< exact query_start and seq_len; the block table is not read
  /// [up to B]: rows and keys of requests, and where their rows of the mask are; entry i is of request
  /// first_request + i, and other requests have no rows.
  View<const mha::sm90::RequestSpan> spans;
  std::int64_t first_request = 0;
  std::int64_t key_tile = 0;  ///< columns of a key tile: 64, 80 or 128
  /// The mask [tiles, rows, 4] contiguous, as sm90::Pass::mask has it; enough tiles for the span of most keys. Column c
  /// of tile t of a row is key keys_begin + t * key_tile + c of the row's request.
  View<std::uint32_t> mask;
  PageMap page_map;            ///< cache_slot space only
  std::int64_t page_size = 0;  ///< likewise
};

/// Writes the masks of the spans' rows: row first_slice_row + i of the mask is row first_row + i of the span. Rows are
/// written in runs of 128, up to the end of the last one that holds a query row; rows past the end are zeros there, and
/// so are keys outside [keys_begin, min(keys_end, seq_len)) and (by position) in the future. Everything else stays as
/// it was. Spans' first_slice_row are multiples of 128, and their runs do not overlap.
/// @throws Error where shapes do not fit
void build_bit_masks(const MaskPass& pass, Stream stream);

/// Loads the kernels' code, which a first call that is captured must not do.
void load_bit_masks();

}  // namespace headrace::attention::cuda
