// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/cuda/stream.h"
#include "headrace/cache.h"
#include "headrace/geometry.h"
#include "headrace/requests.h"
#include "headrace/view.h"

/// The paged cache on a GPU (headrace::append with a stream writes it). Views, but not the structures that hold them,
/// are on the device's memory; calls queue work on a stream, allocate nothing and can be captured in a graph.
namespace headrace::cache::cuda {

/// Keys of one request, and the rows of the output where they go.
struct KeyRun {
  std::int32_t request = 0;
  std::int32_t first = 0;  ///< positions [first, first + count)
  std::int32_t count = 0;
  std::int64_t row = 0;  ///< row of the output for position `first`
};

/// Latents and rope keys of runs of keys, dequantised and rounded once to bfloat16, for the up-projection. What a
/// request does not have (positions from its seq_len on, keys whose page lies outside the cache or the block table)
/// comes out as zeros, and no byte of the cache is read for it. Rows of no run are not written.
/// @param requests  seq_len and block_table are read, query_start is not
/// @param runs      in ascending order of `row`, without overlap
/// @param latent    [rows, R] with contiguous rows; as many rows as the runs reach over
/// @param rope_key  [rows, rope] likewise; ignored when the rope dim is 0
/// @param counter   set to 0 for a later kernel, or null; where there are no keys it stays as it is
void gather(const Geometry& geometry, CacheFormat format, const CacheView& cache, const Requests& requests,
            View<const KeyRun> runs, View<bfloat16> latent, View<bfloat16> rope_key, Stream stream,
            std::int32_t* counter = nullptr);

/// Loads the kernels' code, which a first call that is captured must not do.
void load();

}  // namespace headrace::cache::cuda
