// SPDX-License-Identifier: Apache-2.0
#include "attention/mha/cpu.h"

#include <algorithm>

#include "attention/load_floats.h"
#include "attention/mha/bit_mask.h"
#include "device/parallel.h"
#include "device/tile_products.h"

namespace headrace::attention::mha {
namespace {

static_assert(kKeyTile == kMaskKeys, "a key tile's mask is one word");

/// One head, one tile of query rows: everything the inner loop needs.
struct Task {
  const Geometry& geometry;
  float scale;
  const KeyBlock& keys;
  const QuerySlice& slice;
  std::int64_t head;
  std::int64_t first_row;
  std::int64_t rows;
  float* query;   ///< [rows, nope + rope]
  float* scores;  ///< [rows, kKeyTile]
};

/// Which keys of the tile starting at `first_key` (a position) the row attends to.
std::uint64_t mask_of(const Task& task, std::int64_t row, std::int64_t first_key) {
  if (task.slice.mask.empty()) {
    return prefix_word(task.slice.first_position + row + 1, first_key);
  }
  return task.slice.mask(row, first_key / kMaskKeys);
}

void attend_tile(const Task& task, std::int64_t first_key, std::int64_t key_count) {
  const Geometry& g = task.geometry;
  std::uint64_t masks[kQueryTile];
  std::uint64_t any = 0;
  for (std::int64_t r = 0; r < task.rows; ++r) {
    masks[r] = mask_of(task, task.first_row + r, first_key);
    any |= masks[r];
  }
  if (any == 0) {
    return;
  }
  const std::int64_t offset = first_key - task.keys.first;
  const auto& up = task.keys.up_projected;
  const float* k_nope = up.at(offset, task.head);
  device::products_nt(task.rows, key_count, g.qk_nope_head_dim, task.query, g.qk_head_dim(), k_nope, up.stride(0),
                      task.scores, kKeyTile);
  if (g.qk_rope_head_dim != 0) {
    device::products_nt(task.rows, key_count, g.qk_rope_head_dim, task.query + g.qk_nope_head_dim, g.qk_head_dim(),
                        task.keys.rope_key.at(offset), task.keys.rope_key.stride(0), task.scores, kKeyTile,
                        device::Update::add);
  }
  for (std::int64_t r = 0; r < task.rows; ++r) {
    const std::int64_t row = task.first_row + r;
    const float rescale =
        merge_tile(key_count, task.scores + r * kKeyTile, task.scale, masks[r], task.slice.state(row, task.head));
    if (rescale != 1.0F) {
      scale_values(g.v_head_dim, task.slice.accumulated.at(row, task.head), rescale);
    }
  }
  device::products_nn_add(task.rows, g.v_head_dim, key_count, task.scores, kKeyTile, k_nope + g.qk_nope_head_dim,
                          up.stride(0), task.slice.accumulated.at(task.first_row, task.head),
                          task.slice.accumulated.stride(0));
}

}  // namespace

std::int64_t scratch_floats(const Geometry& geometry) noexcept {
  return kQueryTile * (geometry.qk_head_dim() + kKeyTile);
}

void attend_block(const Geometry& geometry, float scale, const KeyBlock& keys, const QuerySlice& slice,
                  View<float> scratch, int threads) {
  const std::int64_t rows = slice.q.dim(0);
  const std::int64_t tiles = (rows + kQueryTile - 1) / kQueryTile;
  device::parallel_for(geometry.num_heads * tiles, threads, [&](std::int64_t index, int thread) {
    const std::int64_t first_row = index / geometry.num_heads * kQueryTile;
    float* query = scratch.at(thread);
    const Task task{geometry,
                    scale,
                    keys,
                    slice,
                    index % geometry.num_heads,
                    first_row,
                    std::min(kQueryTile, rows - first_row),
                    query,
                    query + kQueryTile * geometry.qk_head_dim()};
    for (std::int64_t r = 0; r < task.rows; ++r) {
      load_floats(slice.q, first_row + r, task.head, geometry.qk_head_dim(), query + r * geometry.qk_head_dim());
    }
    for (std::int64_t k = 0; k < keys.count; k += kKeyTile) {
      attend_tile(task, keys.first + k, std::min(kKeyTile, keys.count - k));
    }
  });
}

}  // namespace headrace::attention::mha
