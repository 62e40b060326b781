// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headrace/cuda.h"
#include "headrace/indexer.h"

/// The indexer on a GPU, in bfloat16. Views, but not the structures that hold them, are on the device's memory; calls
/// queue work on a stream, allocate nothing and can be captured in a graph.
namespace headrace::selection::cuda {

/// headrace::append_index_keys, which has the parameters' meaning. Keys and gates come out bit for bit as there, pooled
/// keys within the rounding of exp. Lengths, slots and pages are not known to the host: a slot outside
/// [0, num_slots()) is skipped, as -1 is, and where a pool's other tokens have no page in the cache its last token
/// keeps its own key.
/// @param key   [T, D] with contiguous rows
/// @param gate  [T, D] likewise
/// @throws Error for shapes, dtypes and strides that do not suit
void append_index_keys(const IndexerGeometry& indexer, const MutableCacheView& cache, ConstAnyView key,
                       ConstAnyView gate, View<const float> offset_bias, const Requests& requests,
                       View<const std::int64_t> slot_mapping, Stream stream);

/// Loads the kernels onto the current device, so that no append is the first to wait for it. @throws Error
void load_append_index_keys();

}  // namespace headrace::selection::cuda
