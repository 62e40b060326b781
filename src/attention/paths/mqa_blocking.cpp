// SPDX-License-Identifier: Apache-2.0
#include "attention/paths/mqa_blocking.h"

#include <algorithm>
#include <cmath>

#include "attention/mha/bit_mask_cuda.h"
#include "attention/mqa/expected_union.h"
#include "attention/mqa/tiles.h"
#include "attention/paths/rounding.h"

namespace headrace::attention {
namespace {

/// A row's keys have room in multiples of this.
constexpr std::int64_t kRowKeysStep = 128;
/// Reading rows as codes takes so many times what reading them as they are takes (`gpu_bench topk` on an H200).
constexpr double kCodesFactor = 1.45;
/// Converting a row takes 0.6 ns (`gpu_bench`: 131,072 keys in 75 to 80 us), reading it as codes 0.1 ns more than as it
/// is (10 million reads: 0.85 ms for fp8, 1.05 for fp8_ds_mla).
constexpr double kReadsToConvert = 6.0;
/// The widest page map is that of pages of one token.
constexpr std::int64_t kSmallestPage = 1;

std::int64_t group_of(const Attention& attention) noexcept { return mqa::group_of(attention.geometry.num_heads); }

/// Keys that `tiles` tiles of a request read, each as often as it is read.
double reads(const Attention& attention, std::int64_t tiles, std::int64_t keys) noexcept {
  const auto rule_keys = static_cast<double>(attention.rule.keys_at(keys - 1));
  const double a_tile = mqa::expected_union(rule_keys, static_cast<double>(group_of(attention)));
  return static_cast<double>(tiles) * std::min(a_tile, static_cast<double>(keys));
}

/// Keys of all requests that are worth converting, at most: all must have been read often enough together.
std::int64_t convertible_keys(const Attention& attention, const Extents& extents) noexcept {
  if (attention.format == CacheFormat::bfloat16 || extents.keys == 0) {
    return 0;
  }
  if (attention.format == CacheFormat::float32) {
    return extents.total_keys;
  }
  const double often = reads(attention, all_tiles(attention, extents), extents.keys) / kReadsToConvert;
  return static_cast<std::int64_t>(std::min(often, static_cast<double>(extents.total_keys)));
}

std::int64_t bytes_with(const Attention& attention, const Extents& extents, const Blocking& blocking) {
  PathArenas arenas;
  const MqaMemory memory(arenas, attention, extents, blocking);
  return arenas.scratch.used();
}

}  // namespace

std::int64_t all_tiles(const Attention& attention, const Extents& extents) noexcept {
  const std::int64_t requests = std::min(extents.rows, extents.requests);
  const std::int64_t blocks = (extents.rows + requests * (mqa::kPositionBlock - 2)) / mqa::kPositionBlock + requests;
  return std::min(extents.rows, blocks * mqa::tiles_a_block(group_of(attention)));
}

bool converts_keys(const Attention& attention, const Blocking& blocking, std::int64_t row_count,
                   std::int64_t keys) noexcept {
  if (attention.format == CacheFormat::bfloat16 || keys == 0) {
    return false;
  }
  const std::int64_t tiles = mqa::most_tiles(row_count, group_of(attention));
  return attention.format == CacheFormat::float32 ||
         (keys <= blocking.context_block &&
          reads(attention, tiles, keys) >= kReadsToConvert * static_cast<double>(keys));
}

std::optional<std::int64_t> most_row_keys(const SelectionRule& rule) noexcept {
  // Rule none has no selection, and an opaque rule need not say how many keys a row has.
  if (rule.width() == 0) {
    return std::nullopt;
  }
  return round_up(rule.width(), kRowKeysStep);
}

std::int64_t list_capacity(const SelectionRule& rule, std::int64_t group, std::int64_t keys) noexcept {
  const std::optional<std::int64_t> row_keys = most_row_keys(rule);
  return round_up(row_keys ? std::min(keys, group * *row_keys) : keys, mqa::kKeyBlock);
}

bool has_all_lists(const Attention& attention, const Extents& extents, const Blocking& blocking) {
  return blocking.query_slice >= all_tiles(attention, extents) * group_of(attention);
}

bool rows_are_tokens(const Attention& attention, const Extents& extents, const Blocking& blocking) {
  return extents.other_rows == 0 && has_all_lists(attention, extents, blocking);
}

MqaMemory::MqaMemory(PathArenas& arenas, const Attention& attention, const Extents& extents, const Blocking& blocking)
    : group(group_of(attention)),
      tiles(blocking.query_slice / group),
      capacity(list_capacity(attention.rule, group, extents.keys)),
      has_all_lists(attention::has_all_lists(attention, extents, blocking)),
      rows_are_tokens(attention::rows_are_tokens(attention, extents, blocking)) {
  const Geometry& g = attention.geometry;
  Arena& lists = arenas.of_selection();
  Arena& arena = arenas.scratch;
  rows = rows_are_tokens ? extents.rows : blocking.query_slice;
  union_tiles = lists.take<mqa::UnionTile>(tiles).data();
  list_keys = lists.take<std::int32_t>(size_product(tiles, capacity)).data();
  list_masks = lists.take<std::uint64_t>(size_product(tiles, capacity / mqa::kKeyBlock, group)).data();
  counter = arena.take<std::int32_t>(1).data();
  if (attention.space == SelectionSpace::cache_slot) {
    page_map_entries = cuda::page_map_entries(extents.keys, kSmallestPage);
    page_map = arena.take<std::uint64_t>(size_product(extents.requests, page_map_entries)).data();
  }
  if (blocking.context_block > 0) {
    converted = arena.take<bfloat16>(size_product(blocking.context_block, g.latent_dim())).data();
  }
  query = arena.take<bfloat16>(size_product(rows, g.num_heads, g.kv_lora_rank)).data();
  if (!rows_are_tokens) {
    const std::int64_t head_bytes =
        std::max(size_of(DType::bfloat16) * g.qk_nope_head_dim, size_of(DType::float32) * g.v_head_dim);
    slots = arena.take<std::byte>(size_product(rows, g.num_heads, head_bytes)).data();
  }
}

Blocking choose_mqa_blocking(const Attention& attention, const Extents& extents, std::int64_t budget) {
  const std::int64_t group = group_of(attention);
  const std::int64_t most = std::max<std::int64_t>(all_tiles(attention, extents), 1);
  const std::int64_t all_keys = convertible_keys(attention, extents);
  const std::int64_t longest = std::min(all_keys, extents.keys);
  const std::int64_t least_keys = attention.format == CacheFormat::float32 ? longest : 0;
  const auto bytes = [&](const Blocking& blocking) { return bytes_with(attention, extents, blocking); };

  const Blocking everything{.query_slice = most * group, .context_block = all_keys};
  if (bytes(everything) <= budget) {
    return everything;
  }
  Blocking blocking{.query_slice = group, .context_block = least_keys};
  const std::int64_t least = bytes(blocking);
  if (least > budget) {
    return blocking;
  }
  // Half of the rest for the keys of more requests: each time that they are exchanged a slice ends early.
  const std::int64_t key_bytes = size_of(DType::bfloat16) * attention.geometry.latent_dim();
  blocking.context_block = std::min(all_keys, least_keys + (budget - least) / 2 / key_bytes);
  if (blocking.context_block < longest) {
    blocking.context_block = least_keys;
  }
  // The most tiles that fit: fits(low) holds, fits(high) does not.
  std::int64_t low = 1;
  std::int64_t high = most + 1;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    const bool fits = bytes({.query_slice = middle * group, .context_block = blocking.context_block}) <= budget;
    (fits ? low : high) = middle;
  }
  // As many slices of one size.
  blocking.query_slice = divide_up(most, divide_up(most, low)) * group;
  return blocking;
}

Work count_mqa_work(const Attention& attention, std::int64_t begin, std::int64_t end, std::int64_t query_slice) {
  const Geometry& g = attention.geometry;
  const auto rows = static_cast<double>(end - begin);
  const std::int64_t group = group_of(attention);
  const auto tile_rows = static_cast<double>(std::min(group, end - begin));
  const double tiles_a_row = static_cast<double>(mqa::tiles_a_block(group)) / static_cast<double>(mqa::kPositionBlock);
  const double tiles = std::max(rows * tiles_a_row, rows / tile_rows);

  // Rows select every key until the rule's width is reached, and a tile walks over those of its last row. From then on
  // they select so many, of which neighbours share most.
  const std::int64_t most = attention.rule.keys_at(end - 1);
  const std::int64_t growing_end = std::clamp(most, begin, end);
  const double growing_share = static_cast<double>(growing_end - begin) / rows;
  const double growing_keys = static_cast<double>(begin + growing_end + 1) / 2.0;
  const double full_keys =
      std::min(mqa::expected_union(static_cast<double>(most), tile_rows), static_cast<double>(end));
  const double last_block = static_cast<double>(mqa::kKeyBlock) / 2.0;
  const double walked = tiles * (growing_share * growing_keys + (1.0 - growing_share) * full_keys + last_block);

  const auto parts = static_cast<double>(divide_up(g.num_heads, mqa::kTileRows));
  const auto heads = static_cast<double>(g.num_heads);
  Work work;
  work.product_flops =
      2.0 * rows * heads * static_cast<double>(g.kv_lora_rank) * static_cast<double>(g.qk_nope_head_dim + g.v_head_dim);
  work.weight_bytes =
      kv_b_proj_bytes(attention) * std::ceil(tiles * static_cast<double>(group) / static_cast<double>(query_slice));
  work.mqa_flops = 2.0 * walked * parts * static_cast<double>(mqa::kTileRows) *
                   static_cast<double>(2 * g.kv_lora_rank + g.qk_rope_head_dim);
  // What the kernel gathers itself is part of its rate.
  const Blocking enough{.query_slice = query_slice, .context_block = end};
  if (converts_keys(attention, enough, end - begin, end)) {
    work.gathered = static_cast<double>(end * g.latent_dim());
  } else if (attention.format != CacheFormat::bfloat16) {
    work.mqa_flops *= kCodesFactor;
  }
  // Lists: selections read, a bitmap of the request's keys for each row, the keys of the union written.
  work.mask_keys = static_cast<double>(end - growing_end) * static_cast<double>(most) +
                   rows * static_cast<double>(end) / 32.0 + walked;
  return work;
}

}  // namespace headrace::attention
