// SPDX-License-Identifier: Apache-2.0
#include "attention/paths/key_blocks.h"

#include <algorithm>

#include "attention/project.h"
#include "cache/row_codec.h"
#include "device/bf16_products.h"
#include "device/parallel.h"

namespace headrace::attention {
namespace {

constexpr std::int64_t kKeysATask = 64;

/// Latents and rope keys of `count` keys from position `first`; T is the compute dtype's type.
template <class T>
void gather(const Call& call, const cache::Request& request, std::int64_t first, std::int64_t count, T* latent,
            T* rope) {
  const Attention& attention = call.plan.attention();
  const Geometry& g = attention.geometry;
  const cache::RowCodec codec(attention.format, g, attention.compute, call.inputs.cache.scale);
  device::parallel_for((count + kKeysATask - 1) / kKeysATask, call.plan.threads(), [&](std::int64_t task, int) {
    for (std::int64_t k = task * kKeysATask; k < std::min(count, (task + 1) * kKeysATask); ++k) {
      codec.read(cache::key_row(call.inputs.cache, call.inputs.requests, request.number, first + k),
                 latent + k * g.kv_lora_rank, rope + k * g.qk_rope_head_dim);
    }
  });
}

std::int64_t head_values(const Geometry& g) noexcept { return g.qk_nope_head_dim + g.v_head_dim; }

}  // namespace

KeyBlocks<FloatTiles>::KeyBlocks(Arena& arena, const Attention& attention, std::int64_t length) {
  const Geometry& g = attention.geometry;
  latent_ = arena.take<std::byte>(length * g.latent_dim() * size_of(attention.compute));
  rope_ = arena.take<float>(length * g.qk_rope_head_dim);
  up_projected_ = arena.take<float>(length * g.num_heads * head_values(g));
}

mha::KeyBlock<float> KeyBlocks<FloatTiles>::make(const Call& call, const cache::Request& request, std::int64_t first,
                                                 std::int64_t count) const {
  const Attention& attention = call.plan.attention();
  const Geometry& g = attention.geometry;
  std::byte* rope = latent_.data() + count * g.kv_lora_rank * size_of(attention.compute);
  if (attention.compute == DType::float32) {
    gather(call, request, first, count, reinterpret_cast<float*>(latent_.data()), reinterpret_cast<float*>(rope));
    std::copy_n(reinterpret_cast<const float*>(rope), count * g.qk_rope_head_dim, rope_.data());
  } else {
    auto* narrow = reinterpret_cast<bfloat16*>(rope);
    gather(call, request, first, count, reinterpret_cast<bfloat16*>(latent_.data()), narrow);
    std::transform(narrow, narrow + count * g.qk_rope_head_dim, rope_.data(),
                   [](bfloat16 value) { return static_cast<float>(value); });
  }
  const ConstAnyView latent(latent_.data(), attention.compute, 2, {count, g.kv_lora_rank}, {g.kv_lora_rank, 1});
  up_project(attention.compute, latent, call.weights.kv_b_proj,
             View<float>(up_projected_.data(), {count, g.num_heads, head_values(g)}), call.plan.threads());
  const std::int64_t ld = g.num_heads * head_values(g);
  mha::KeyBlock<float> keys;
  keys.first = first;
  keys.count = count;
  keys.nope = {up_projected_.data(), head_values(g), kKeyTile * ld, ld};
  keys.value = {up_projected_.data() + g.qk_nope_head_dim, head_values(g), kKeyTile * ld, ld};
  keys.rope = {rope_.data(), 0, kKeyTile * g.qk_rope_head_dim, g.qk_rope_head_dim};
  return keys;
}

KeyBlocks<PairTiles>::KeyBlocks(Arena& arena, const Attention& attention, std::int64_t length)
    : tiles_((length + kKeyTile - 1) / kKeyTile) {
  const Geometry& g = attention.geometry;
  const std::int64_t chunk = std::min(length, kChunk);
  latent_ = arena.take<bfloat16>(chunk * g.kv_lora_rank);
  rope_ = arena.take<bfloat16>(chunk * g.qk_rope_head_dim);
  up_projected_ = arena.take<bfloat16>(chunk * g.num_heads * head_values(g));
  packed_nope_ = arena.take<bfloat16>(g.num_heads * tiles_ * device::packed_pairs(g.qk_nope_head_dim, kKeyTile));
  packed_rope_ = arena.take<bfloat16>(tiles_ * device::packed_pairs(g.qk_rope_head_dim, kKeyTile));
  packed_value_ = arena.take<bfloat16>(g.num_heads * tiles_ * device::packed_pairs(kKeyTile, g.v_head_dim));
}

void KeyBlocks<PairTiles>::pack_chunk(const Call& call, std::int64_t first_tile, std::int64_t count) const {
  const Geometry& g = call.plan.attention().geometry;
  const std::int64_t chunk_tiles = (count + kKeyTile - 1) / kKeyTile;
  const std::int64_t nope_size = device::packed_pairs(g.qk_nope_head_dim, kKeyTile);
  const std::int64_t rope_size = device::packed_pairs(g.qk_rope_head_dim, kKeyTile);
  const std::int64_t value_size = device::packed_pairs(kKeyTile, g.v_head_dim);
  const std::int64_t ld = g.num_heads * head_values(g);
  device::parallel_for(g.num_heads * chunk_tiles, call.plan.threads(), [&](std::int64_t index, int) {
    const std::int64_t head = index % g.num_heads;
    const std::int64_t first = index / g.num_heads * kKeyTile;
    const std::int64_t keys = std::min(kKeyTile, count - first);
    const std::int64_t tile = first_tile + first / kKeyTile;
    const bfloat16* up = up_projected_.data() + first * ld + head * head_values(g);
    device::pack_pairs_transposed(g.qk_nope_head_dim, keys, up, ld, kKeyTile,
                                  packed_nope_.data() + (head * tiles_ + tile) * nope_size);
    device::pack_pairs(keys, g.v_head_dim, up + g.qk_nope_head_dim, ld,
                       packed_value_.data() + (head * tiles_ + tile) * value_size);
    if (head == 0 && g.qk_rope_head_dim != 0) {
      device::pack_pairs_transposed(g.qk_rope_head_dim, keys, rope_.data() + first * g.qk_rope_head_dim,
                                    g.qk_rope_head_dim, kKeyTile, packed_rope_.data() + tile * rope_size);
    }
  });
}

mha::KeyBlock<bfloat16> KeyBlocks<PairTiles>::make(const Call& call, const cache::Request& request, std::int64_t first,
                                                   std::int64_t count) const {
  const Geometry& g = call.plan.attention().geometry;
  for (std::int64_t done = 0; done < count; done += kChunk) {
    const std::int64_t some = std::min(kChunk, count - done);
    gather(call, request, first + done, some, latent_.data(), rope_.data());
    up_project(DType::bfloat16, View<const bfloat16>(latent_.data(), {some, g.kv_lora_rank}), call.weights.kv_b_proj,
               View<bfloat16>(up_projected_.data(), {some, g.num_heads, head_values(g)}), call.plan.threads());
    pack_chunk(call, done / kKeyTile, some);
  }
  const std::int64_t nope_size = device::packed_pairs(g.qk_nope_head_dim, kKeyTile);
  const std::int64_t value_size = device::packed_pairs(kKeyTile, g.v_head_dim);
  mha::KeyBlock<bfloat16> keys;
  keys.first = first;
  keys.count = count;
  keys.nope = {packed_nope_.data(), tiles_ * nope_size, nope_size, kKeyTile};
  keys.value = {packed_value_.data(), tiles_ * value_size, value_size, g.v_head_dim};
  keys.rope = {packed_rope_.data(), 0, device::packed_pairs(g.qk_rope_head_dim, kKeyTile), kKeyTile};
  return keys;
}

}  // namespace headrace::attention
