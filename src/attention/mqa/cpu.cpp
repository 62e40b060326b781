// SPDX-License-Identifier: Apache-2.0
#include "attention/mqa/cpu.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "attention/mha/bit_mask.h"
#include "attention/mqa/key_walk.h"
#include "attention/row_values.h"
#include "device/bf16_products.h"

namespace headrace::attention::mqa {
namespace {

static_assert(kKeyTile == kMaskKeys, "the columns of a key tile make one mask word");

/// What gathering (and packing) a key costs, in rows of products with it: as measured, a tile of 64 latents takes as
/// long to gather as to multiply with this many rows.
constexpr std::int64_t kGatherRows = 12;

std::int64_t tile_rows(std::int64_t num_heads) noexcept { return rows_a_tile(num_heads) * num_heads; }

/// Some rows of a tile, walking one mask.
template <class Tiles>
class Walk {
 public:
  using Element = typename Tiles::Element;

  Walk(const Attention& attention, const Inputs& inputs, const cache::RowCodec& codec, std::int64_t request,
       const RowTile<Element>& tile, const Scratch<Tiles>& scratch)
      : attention_(attention),
        geometry_(attention.geometry),
        inputs_(inputs),
        codec_(codec),
        request_(request),
        tile_(tile),
        scratch_(scratch) {}

  /// Rows [first, first + rows) over the keys of `mask`, which holds all of theirs.
  void run(std::int64_t first, std::int64_t rows, std::span<const std::uint64_t> mask) {
    const Geometry& g = geometry_;
    const std::int64_t all = rows * g.num_heads;
    std::fill_n(scratch_.accumulated.data(), all * g.kv_lora_rank, 0.0F);
    std::fill_n(scratch_.state.data(), all, RowState{});
    KeyWalk walk(mask);
    while (const std::int64_t count = walk.next(kKeyTile, positions_)) {
      gather(count);
      float* scores = scratch_.scores.data();
      Tiles::scores(all, count, g.latent_dim(), tile_.query + first * g.num_heads * tile_.query_ld, tile_.query_ld,
                    key_tile_, key_ld_, scores, device::Update::overwrite);
      for (std::int64_t r = 0; r < rows; ++r) {
        merge_row(count, rows == 1 ? ~std::uint64_t{0} : columns_of(first + r, count), r);
      }
      Tiles::add_values(all, count, g.kv_lora_rank, scores, value_tile_, value_ld_, scratch_.accumulated.data(),
                        g.kv_lora_rank, scratch_.rounded.data());
    }
  }

  void finish(std::int64_t first, std::int64_t rows, const float* sink, const RowResults& results) const {
    const Geometry& g = geometry_;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t h = 0; h < g.num_heads; ++h) {
        const std::int64_t index = r * g.num_heads + h;
        float* accumulated = scratch_.accumulated.data() + index * g.kv_lora_rank;
        const float factor =
            finish_row(scratch_.state[static_cast<std::size_t>(index)], sink == nullptr ? nullptr : sink + h,
                       results.lse[(first + r) * g.num_heads + h]);
        scale_values(g.kv_lora_rank, accumulated, factor);
        store_floats(accumulated, g.kv_lora_rank, results.attended, first + r, h);
      }
    }
  }

 private:
  void gather(std::int64_t count) {
    const std::int64_t ld = geometry_.latent_dim();
    Element* latents = scratch_.latents.data();
    for (std::int64_t k = 0; k < count; ++k) {
      codec_.read(cache::key_row(inputs_.cache, inputs_.requests, request_, positions_[k]), latents + k * ld,
                  latents + k * ld + geometry_.kv_lora_rank);
    }
    if constexpr (std::is_same_v<Tiles, PairTiles>) {
      device::pack_pairs_transposed(ld, count, latents, ld, kKeyTile, scratch_.packed_keys.data());
      device::pack_pairs(count, geometry_.kv_lora_rank, latents, ld, scratch_.packed_values.data());
      key_tile_ = scratch_.packed_keys.data();
      key_ld_ = kKeyTile;
      value_tile_ = scratch_.packed_values.data();
      value_ld_ = geometry_.kv_lora_rank;
    } else {
      key_tile_ = value_tile_ = latents;
      key_ld_ = value_ld_ = ld;
    }
  }

  /// Which of the tile's keys a row attends to.
  [[nodiscard]] std::uint64_t columns_of(std::int64_t row, std::int64_t count) const noexcept {
    const std::uint64_t* mask = tile_.masks.at(row);
    std::uint64_t columns = 0;
    for (std::int64_t k = 0; k < count; ++k) {
      columns |= (mask[positions_[k] / kMaskKeys] >> (positions_[k] % kMaskKeys) & 1U) << k;
    }
    return columns;
  }

  void merge_row(std::int64_t count, std::uint64_t columns, std::int64_t row) {
    const auto scale = static_cast<float>(attention_.scale);
    for (std::int64_t h = 0; h < geometry_.num_heads; ++h) {
      const std::int64_t index = row * geometry_.num_heads + h;
      const float rescale = merge_tile(count, scratch_.scores.data() + index * kKeyTile, scale, columns,
                                       scratch_.state[static_cast<std::size_t>(index)]);
      if (rescale != 1.0F) {
        scale_values(geometry_.kv_lora_rank, scratch_.accumulated.data() + index * geometry_.kv_lora_rank, rescale);
      }
    }
  }

  const Attention& attention_;
  const Geometry& geometry_;
  const Inputs& inputs_;
  const cache::RowCodec& codec_;
  std::int64_t request_;
  const RowTile<Element>& tile_;
  const Scratch<Tiles>& scratch_;
  std::int64_t positions_[kKeyTile] = {};
  const Element* key_tile_ = nullptr;
  std::int64_t key_ld_ = 0;
  const Element* value_tile_ = nullptr;
  std::int64_t value_ld_ = 0;
};

/// The union of the rows' masks; returns whether walking it together costs less than each row walking its own. The
/// answer depends on the rows alone, so it is the same whatever else is in the batch.
bool make_union(const View<const std::uint64_t>& masks, std::int64_t rows, std::int64_t num_heads,
                std::span<std::uint64_t> union_mask) noexcept {
  std::int64_t apart = 0;
  std::int64_t together = 0;
  for (std::int64_t w = 0; w < masks.dim(1); ++w) {
    std::uint64_t word = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      word |= masks(r, w);
      apart += std::popcount(masks(r, w));
    }
    together += std::popcount(word);
    union_mask[static_cast<std::size_t>(w)] = word;
  }
  return packing_pays(static_cast<double>(together), static_cast<double>(apart), rows, num_heads);
}

}  // namespace

std::int64_t rows_a_tile(std::int64_t num_heads) noexcept {
  return static_cast<std::int64_t>(
      std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(kQueryTile / num_heads, 1))));
}

bool packing_pays(double together, double apart, std::int64_t rows, std::int64_t num_heads) noexcept {
  return together * static_cast<double>(kGatherRows + rows * num_heads) <
         apart * static_cast<double>(kGatherRows + num_heads);
}

template <class Tiles>
Scratch<Tiles>::Scratch(Arena& arena, const Geometry& geometry, std::int64_t words) {
  using Element = typename Tiles::Element;
  const std::int64_t rows = tile_rows(geometry.num_heads);
  union_mask = arena.take<std::uint64_t>(words);
  latents = arena.take<Element>(kKeyTile * geometry.latent_dim());
  if constexpr (std::is_same_v<Tiles, PairTiles>) {
    packed_keys = arena.take<Element>(device::packed_pairs(geometry.latent_dim(), kKeyTile));
    packed_values = arena.take<Element>(device::packed_pairs(kKeyTile, geometry.kv_lora_rank));
    rounded = arena.take<bfloat16>(rows * kKeyTile);
  }
  scores = arena.take<float>(rows * kKeyTile);
  accumulated = arena.take<float>(rows * geometry.kv_lora_rank);
  state = arena.take<RowState>(rows);
}

template <class Tiles>
void attend_rows(const Attention& attention, const Inputs& inputs, const cache::RowCodec& codec, std::int64_t request,
                 const RowTile<typename Tiles::Element>& tile, const float* sink, const Scratch<Tiles>& scratch,
                 const RowResults& results) {
  Walk<Tiles> walk(attention, inputs, codec, request, tile, scratch);
  const auto words = static_cast<std::size_t>(tile.masks.dim(1));
  const auto union_mask = scratch.union_mask.first(words);
  if (tile.rows > 1 && make_union(tile.masks, tile.rows, attention.geometry.num_heads, union_mask)) {
    walk.run(0, tile.rows, union_mask);
    walk.finish(0, tile.rows, sink, results);
    return;
  }
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    walk.run(r, 1, {tile.masks.at(r), words});
    walk.finish(r, 1, sink, results);
  }
}

template class Scratch<FloatTiles>;
template class Scratch<PairTiles>;
template void attend_rows<FloatTiles>(const Attention&, const Inputs&, const cache::RowCodec&, std::int64_t,
                                      const RowTile<float>&, const float*, const Scratch<FloatTiles>&,
                                      const RowResults&);
template void attend_rows<PairTiles>(const Attention&, const Inputs&, const cache::RowCodec&, std::int64_t,
                                     const RowTile<bfloat16>&, const float*, const Scratch<PairTiles>&,
                                     const RowResults&);

}  // namespace headrace::attention::mqa
