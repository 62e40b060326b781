// SPDX-License-Identifier: Apache-2.0
#include "attention/mha/cpu.h"

#include <algorithm>

#include "attention/arena.h"
#include "attention/mha/bit_mask.h"
#include "attention/row_values.h"
#include "device/parallel.h"

namespace headrace::attention::mha {
namespace {

static_assert(kKeyTile == kMaskKeys, "a key tile's mask is one word");

/// A thread's scratch, cut into its arrays.
template <class Element>
struct Scratch {
  Scratch(Arena& arena, const Geometry& g) {
    query = arena.take<Element>(kQueryTile * (g.qk_head_dim() + 2));
    scores = arena.take<float>(kQueryTile * kKeyTile);
    rounded = arena.take<bfloat16>(kQueryTile * kKeyTile);
  }
  std::span<Element> query;  ///< [kQueryTile, padded nope + padded rope]
  std::span<float> scores;   ///< [kQueryTile, kKeyTile]
  std::span<bfloat16> rounded;
};

/// One head and one tile of query rows against all keys of a block.
template <class Tiles>
class Task {
 public:
  using Element = typename Tiles::Element;

  Task(const Geometry& geometry, float scale, const KeyBlock<Element>& keys, const QuerySlice& slice, std::int64_t head,
       std::int64_t first_row, Arena scratch)
      : geometry_(geometry),
        scale_(scale),
        keys_(keys),
        slice_(slice),
        head_(head),
        first_row_(first_row),
        rows_(std::min(kQueryTile, slice.q.dim(0) - first_row)),
        nope_dims_(Tiles::padded(geometry.qk_nope_head_dim)),
        query_ld_(nope_dims_ + Tiles::padded(geometry.qk_rope_head_dim)),
        scratch_(scratch, geometry) {
    const std::int64_t nope = geometry.qk_nope_head_dim;
    std::fill(scratch_.query.begin(), scratch_.query.end(), Element(0.0F));
    for (std::int64_t r = 0; r < rows_; ++r) {
      Element* row = scratch_.query.data() + r * query_ld_;
      load_values(slice.q, first_row + r, head, 0, nope, row);
      load_values(slice.q, first_row + r, head, nope, geometry.qk_rope_head_dim, row + nope_dims_);
    }
  }

  void run() {
    for (std::int64_t tile = 0; tile * kKeyTile < keys_.count; ++tile) {
      attend_tile(tile, std::min(kKeyTile, keys_.count - tile * kKeyTile));
    }
  }

 private:
  /// Which keys of a tile the row attends to.
  [[nodiscard]] std::uint64_t mask_of(std::int64_t row, std::int64_t first_key) const noexcept {
    if (slice_.mask.empty()) {
      return prefix_word(slice_.first_position + row + 1, first_key);
    }
    return slice_.mask(row, first_key / kMaskKeys);
  }

  void attend_tile(std::int64_t tile, std::int64_t key_count) {
    std::uint64_t masks[kQueryTile];
    std::uint64_t any = 0;
    for (std::int64_t r = 0; r < rows_; ++r) {
      masks[r] = mask_of(first_row_ + r, keys_.first + tile * kKeyTile);
      any |= masks[r];
    }
    if (any == 0) {
      return;
    }
    float* scores = scratch_.scores.data();
    const Element* query = scratch_.query.data();
    Tiles::scores(rows_, key_count, geometry_.qk_nope_head_dim, query, query_ld_, keys_.nope.tile(head_, tile),
                  keys_.nope.ld, scores, device::Update::overwrite);
    if (geometry_.qk_rope_head_dim != 0) {
      Tiles::scores(rows_, key_count, geometry_.qk_rope_head_dim, query + nope_dims_, query_ld_,
                    keys_.rope.tile(head_, tile), keys_.rope.ld, scores, device::Update::add);
    }
    for (std::int64_t r = 0; r < rows_; ++r) {
      const std::int64_t row = first_row_ + r;
      const float rescale = merge_tile(key_count, scores + r * kKeyTile, scale_, masks[r], slice_.state(row, head_));
      if (rescale != 1.0F) {
        scale_values(geometry_.v_head_dim, slice_.accumulated.at(row, head_), rescale);
      }
    }
    Tiles::add_values(rows_, key_count, geometry_.v_head_dim, scores, keys_.value.tile(head_, tile), keys_.value.ld,
                      slice_.accumulated.at(first_row_, head_), slice_.accumulated.stride(0), scratch_.rounded.data());
  }

  const Geometry& geometry_;
  float scale_;
  const KeyBlock<Element>& keys_;
  const QuerySlice& slice_;
  std::int64_t head_;
  std::int64_t first_row_;
  std::int64_t rows_;
  std::int64_t nope_dims_;
  std::int64_t query_ld_;
  Scratch<Element> scratch_;
};

}  // namespace

std::int64_t scratch_bytes(const Geometry& geometry) noexcept {
  Arena arena;
  const Scratch<float> scratch(arena, geometry);
  return arena.used();
}

template <class Tiles>
void attend_block(const Geometry& geometry, float scale, const KeyBlock<typename Tiles::Element>& keys,
                  const QuerySlice& slice, View<std::byte> scratch, int threads) {
  const std::int64_t tiles = (slice.q.dim(0) + kQueryTile - 1) / kQueryTile;
  device::parallel_for(geometry.num_heads * tiles, threads, [&](std::int64_t index, int thread) {
    const Arena arena({scratch.at(thread), static_cast<std::size_t>(scratch.dim(1))});
    Task<Tiles>(geometry, scale, keys, slice, index % geometry.num_heads, index / geometry.num_heads * kQueryTile,
                arena)
        .run();
  });
}

template void attend_block<FloatTiles>(const Geometry&, float, const KeyBlock<float>&, const QuerySlice&,
                                       View<std::byte>, int);
template void attend_block<PairTiles>(const Geometry&, float, const KeyBlock<bfloat16>&, const QuerySlice&,
                                      View<std::byte>, int);

}  // namespace headrace::attention::mha
