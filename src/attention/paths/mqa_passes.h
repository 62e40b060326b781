// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/mqa/union_list.h"
#include "attention/paths/mha_passes.h"
#include "cache/cuda.h"

/// How topk_mqa's work on a GPU is cut: into stages, for each of which the keys of some requests are converted side by
/// side, and stages into slices of tiles that are attended to at once. Made on the host from bounds of lengths; nothing
/// here needs a GPU.
namespace headrace::attention {

/// What can be dealt with at once.
struct MqaCapacity {
  std::int64_t tiles = 0;  ///< of a slice
  std::int64_t keys = 0;   ///< converted keys of a stage, at least those of any request that has its keys converted
};

struct MqaSlice {
  std::int64_t first_tile = 0;  ///< tiles [first_tile, first_tile + num_tiles)
  std::int64_t num_tiles = 0;
  std::int64_t keys = 0;  ///< of the request that has most
};

struct MqaStage {
  std::int64_t first_run = 0;  ///< runs [first_run, first_run + num_runs); none where keys are not converted
  std::int64_t num_runs = 0;
  std::int64_t keys = 0;  ///< converted
  std::int64_t first_slice = 0;
  std::int64_t num_slices = 0;
};

struct MqaPasses {
  std::vector<mqa::PathRows> rows;        ///< one for every request of the batch
  std::vector<mqa::TileReference> tiles;  ///< of a request next to each other, in order
  std::vector<cache::cuda::KeyRun> runs;
  /// Of every request of the batch the converted row of its key 0, in the stage that converts its keys; none where
  /// no stage does.
  std::vector<std::int64_t> first_rows;
  std::vector<MqaSlice> slices;
  std::vector<MqaStage> stages;

  /// Empties it and keeps its memory.
  void clear() noexcept {
    rows.clear();
    tiles.clear();
    runs.clear();
    first_rows.clear();
    slices.clear();
    stages.clear();
  }
};

/// Requests whose keys are not converted make one stage, the first. Without rows there is nothing at all.
/// @param requests  of the batch
/// @param group     rows a tile
/// @param passes    takes the place of what it holds, in its memory
void plan_mqa_passes(std::span<const RowsOnPath> rows, std::int64_t requests, std::int64_t group,
                     const MqaCapacity& capacity, MqaPasses& passes);

}  // namespace headrace::attention
