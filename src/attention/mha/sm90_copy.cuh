// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "attention/mha/sm90_tile.cuh"
#include "cache/request_rows.h"

/// What the producer of the flash attention kernel does: takes tiles from the queue, feeds the copy engine.
namespace headrace::attention::mha::sm90 {

/// Tile number `index` of the queue: group after group of heads; in a group tile after tile, all its heads in turn.
template <class C>
__device__ TileWork describe(const Params& p, std::int32_t index) {
  TileWork work{};
  if (index >= p.total) {
    work.head = -1;
    return work;
  }
  const std::int32_t group = min(index / (p.num_tiles * p.head_group), p.last_group);
  const std::int32_t first_head = group * p.head_group;
  const std::int32_t heads = group == p.last_group ? p.heads - first_head : p.head_group;
  const std::int32_t rest = index - p.num_tiles * first_head;
  const QueryTile tile = p.tiles[rest / heads];
  work.head = first_head + rest % heads;

  const RequestSpan span = p.spans[tile.request];
  const std::int32_t seq_len = p.seq_len[tile.request];
  const std::int32_t row = tile.tile * static_cast<std::int32_t>(kQueryTile);
  const cache::RequestRows rows = rows_of(span, cache::request_rows(p.query_start[tile.request],
                                                                    p.query_start[tile.request + 1], seq_len, p.tokens))
                                      .slice(row, static_cast<std::int32_t>(kQueryTile));
  work.rows = rows.count();
  work.token = rows.token();
  work.slice_row = span.first_slice_row + row;
  work.first_key = span.first_key;
  work.keys = max(0, min(span.keys_end, cache::request_keys(seq_len)) - span.keys_begin);
  work.diagonal = rows.begin - span.keys_begin + 1;
  const std::int32_t visible = p.causal ? min(work.keys, max(0, work.diagonal + work.rows - 1)) : work.keys;
  work.key_tiles = work.rows > 0 ? (visible + C::kKeys - 1) / C::kKeys : 0;
  return work;
}

template <class C>
__device__ void produce(const Params& p, SharedStorage<C>& smem) {
  Ring<C::kStages> k_stage;
  Ring<C::kStages> v_stage;
  Ring<2> slot;
  std::uint32_t q_phase = 0;
  const auto load = [](const CUtensorMap& map, std::uint64_t& barrier, bf16* to, int column, int head, int row) {
    cute::SM90_TMA_LOAD_3D::copy(&map, &barrier, static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL), to,
                                 column, head, row);
  };

  TileWork work = describe<C>(p, static_cast<std::int32_t>(blockIdx.x));
  while (true) {
    Barrier::wait(&smem.empty_work[slot.index], slot.phase ^ 1U);
    smem.work[slot.index] = work;
    Barrier::arrive(&smem.full_work[slot.index]);
    slot.advance();
    if (work.head < 0) {
      return;
    }
    // Its answer is needed at the end of this tile only.
    const std::int32_t next = static_cast<std::int32_t>(gridDim.x) + atomicAdd(p.counter, 1);
    const auto load_q = [&](int group) {
      Barrier::wait(&smem.empty_q[group], q_phase ^ 1U);
      std::uint64_t& full = smem.full_q[group];
      TransactionBarrier::arrive_and_expect_tx(&full, C::kQueryBytes / kConsumers);
      for (int block = 0; block < C::kQk / kColumnBlock; ++block) {
        load(p.query, full, smem.q[group] + block * kColumnBlock * kRowsOfGroup, block * kColumnBlock, work.head,
             work.token + group * kRowsOfGroup);
      }
    };
    const auto load_k = [&](int tile) {
      Barrier::wait(&smem.empty_k[k_stage.index], k_stage.phase ^ 1U);
      std::uint64_t& full = smem.full_k[k_stage.index];
      TransactionBarrier::arrive_and_expect_tx(&full, C::kKeyBytes);
      const int row = static_cast<int>(work.first_key) + tile * C::kKeys;
      for (int block = 0; block < C::kQk / kColumnBlock; ++block) {
        bf16* to = smem.k[k_stage.index] + block * kColumnBlock * C::kKeys;
        if (block < p.nope_blocks) {
          load(p.key_nope, full, to, block * kColumnBlock, work.head, row);
        } else {
          load(p.key_rope, full, to, (block - p.nope_blocks) * kColumnBlock, 0, row);
        }
      }
      k_stage.advance();
    };
    const auto load_v = [&](int tile) {
      Barrier::wait(&smem.empty_v[v_stage.index], v_stage.phase ^ 1U);
      std::uint64_t& full = smem.full_v[v_stage.index];
      TransactionBarrier::arrive_and_expect_tx(&full, C::kValueBytes);
      const int row = static_cast<int>(work.first_key) + tile * C::kKeys;
      for (int block = 0; block < C::kV / kColumnBlock; ++block) {
        load(p.value, full, smem.v[v_stage.index] + block * kColumnBlock * C::kKeys, block * kColumnBlock, work.head,
             row);
      }
      v_stage.advance();
    };
    if (work.key_tiles > 0) {
      // One group may begin while the other is at its last tile.
      load_q(0);
      load_k(work.key_tiles - 1);
      load_q(1);
      q_phase ^= 1U;
    }
    const TileWork following = describe<C>(p, next);
    for (int tile = work.key_tiles - 1; tile >= 0; --tile) {
      if (tile > 0) {
        load_k(tile - 1);
      }
      load_v(tile);
    }
    work = following;
  }
}

}  // namespace headrace::attention::mha::sm90
