// SPDX-License-Identifier: Apache-2.0
#include "attention/mqa/cpu.h"

#include <algorithm>
#include <bit>

#include "attention/load_floats.h"
#include "attention/merge.h"
#include "attention/mha/bit_mask.h"
#include "attention/request.h"
#include "device/tile_products.h"

namespace headrace::attention::mqa {
namespace {

static_assert(kKeyTile <= 64, "merge_tile takes at most 64 keys");

/// Walks the set bits of a mask in ascending order.
class KeyWalk {
 public:
  explicit KeyWalk(std::span<const std::uint64_t> mask) noexcept : mask_(mask) { load(); }

  /// Up to n further positions; returns how many there were.
  std::int64_t next(std::int64_t n, std::int64_t* positions) noexcept {
    std::int64_t count = 0;
    while (count < n && word_ < mask_.size()) {
      if (bits_ == 0) {
        ++word_;
        load();
        continue;
      }
      positions[count++] = static_cast<std::int64_t>(word_) * kMaskKeys + std::countr_zero(bits_);
      bits_ &= bits_ - 1;
    }
    return count;
  }

 private:
  void load() noexcept { bits_ = word_ < mask_.size() ? mask_[word_] : 0; }

  std::span<const std::uint64_t> mask_;
  std::size_t word_ = 0;
  std::uint64_t bits_ = 0;
};

}  // namespace

void attend_row(const Attention& attention, const Inputs& inputs, const cache::RowCodec& codec, std::int64_t request,
                const float* query, std::span<const std::uint64_t> mask, const float* sink, const Scratch& scratch,
                AnyView out, float* lse) {
  const Geometry& g = attention.geometry;
  const std::int64_t row = g.latent_dim();
  const auto scale = static_cast<float>(attention.scale);
  float* keys = scratch.keys.data();
  float* scores = scratch.scores.data();
  float* accumulated = scratch.accumulated.data();
  std::fill(scratch.accumulated.begin(), scratch.accumulated.end(), 0.0F);
  std::fill(scratch.state.begin(), scratch.state.end(), RowState{});

  KeyWalk walk(mask);
  std::int64_t positions[kKeyTile];
  while (const std::int64_t count = walk.next(kKeyTile, positions)) {
    for (std::int64_t k = 0; k < count; ++k) {
      float* latent = keys + k * row;
      const std::int64_t slot = slot_of(inputs.requests, inputs.cache, request, positions[k]);
      codec.read(inputs.cache.row(slot), latent, latent + g.kv_lora_rank);
    }
    device::products_nt(g.num_heads, count, row, query, row, keys, row, scores, kKeyTile);
    for (std::int64_t h = 0; h < g.num_heads; ++h) {
      const float rescale = merge_tile(count, scores + h * kKeyTile, scale, ~std::uint64_t{0},
                                       scratch.state[static_cast<std::size_t>(h)]);
      if (rescale != 1.0F) {
        scale_values(g.kv_lora_rank, accumulated + h * g.kv_lora_rank, rescale);
      }
    }
    device::products_nn_add(g.num_heads, g.kv_lora_rank, count, scores, kKeyTile, keys, row, accumulated,
                            g.kv_lora_rank);
  }
  for (std::int64_t h = 0; h < g.num_heads; ++h) {
    const float factor =
        finish_row(scratch.state[static_cast<std::size_t>(h)], sink == nullptr ? nullptr : sink + h, lse[h]);
    scale_values(g.kv_lora_rank, accumulated + h * g.kv_lora_rank, factor);
    store_floats(accumulated + h * g.kv_lora_rank, g.kv_lora_rank, out, 0, h);
  }
}

}  // namespace headrace::attention::mqa
