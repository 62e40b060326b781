// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/mha/sm90.h"
#include "cache/cuda.h"

/// How the MHA paths' work on a GPU is cut into passes: in each, some requests' keys are gathered and up-projected side
/// by side, and query tiles attend to them. Made on the host from bounds of lengths; nothing here needs a GPU.
namespace headrace::attention {

/// Rows of a request that take a path, as the plan bounds them.
struct RowsOnPath {
  std::int64_t request = 0;
  std::int64_t begin = 0;  ///< positions [begin, end); 0 where shorter lengths may move any row here
  std::int64_t end = 0;
  std::int64_t row_count = 0;       ///< query rows among them, at most
  std::int64_t first_position = 0;  ///< of the first of these rows, at most
  std::int64_t keys = 0;            ///< that any of these rows may attend to lie at positions [0, keys) ...
  bool causal = true;               ///< ... and for each row not past its own
  bool converts = false;            ///< topk_mqa: these keys are converted first
};

/// What a pass may take at once.
struct PassCapacity {
  std::int64_t keys = 0;        ///< packed keys; a multiple of the key tile wherever it is less than a request has
  std::int64_t slice_rows = 0;  ///< rows with a mask or an earlier result, in whole query tiles
};

struct MhaPass {
  std::int64_t first_run = 0;  ///< runs [first_run, first_run + num_runs)
  std::int64_t num_runs = 0;
  std::int64_t first_span = 0;  ///< spans [first_span, first_span + num_spans) ...
  std::int64_t num_spans = 0;
  std::int64_t first_request = 0;  ///< ... of requests from this one on; those between that have no rows here are empty
  std::int64_t first_tile = 0;
  std::int64_t num_tiles = 0;
  std::int64_t keys = 0;        ///< packed
  std::int64_t key_tiles = 0;   ///< of the request that has most
  std::int64_t slice_rows = 0;  ///< in whole query tiles
  bool has_earlier = false;     ///< an earlier pass has dealt with earlier keys of these rows
  bool to_slice = false;        ///< a later pass will deal with later keys
};

struct MhaPasses {
  std::vector<cache::cuda::KeyRun> runs;
  std::vector<mha::sm90::RequestSpan> spans;
  std::vector<mha::sm90::QueryTile> tiles;  ///< in each pass those of most keys first
  std::vector<MhaPass> passes;
  std::vector<std::int64_t> first_positions;  ///< scratch: of each request's rows in a pass

  /// Empties it and keeps its memory.
  void clear() noexcept {
    runs.clear();
    spans.clear();
    tiles.clear();
    passes.clear();
  }
};

/// Requests whose keys fit are packed together and dealt with in one pass each; those of more keys are cut into slices
/// of query rows, and each slice meets its keys in blocks of `capacity.keys`, one after the other.
/// @param requests  of the batch
/// @param rows      by ascending request, each of which occurs at most once
/// @param masked    rows need masks, so that no pass may have more than capacity.slice_rows
/// @param passes    takes the place of what it holds, in its memory
void plan_mha_passes(std::span<const RowsOnPath> rows, std::int64_t requests, const PassCapacity& capacity,
                     std::int64_t key_tile, bool masked, MhaPasses& passes);

}  // namespace headrace::attention
