// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "attention/device_passes.h"
#include "attention/mha/bit_mask_cuda.h"
#include "attention/mha/sm90.h"
#include "attention/paths/mha_sm90.h"
#include "attention/paths/rounding.h"
#include "attention/project_cuda.h"
#include "cache/cuda.h"
#include "core/layout_text.h"
#include "device/cuda/device.h"
#include "headrace/error.h"

namespace headrace::attention {
namespace {

using mha::sm90::kMaskWords;
using mha::sm90::kQueryTile;

/// The widest page map is that of pages of one token.
constexpr std::int64_t kSmallestPage = 1;

bool meets_keys_in_blocks(const Extents& extents, const Blocking& blocking) noexcept {
  return extents.keys > blocking.context_block;
}

/// The workspace of a call, cut into its arrays.
struct Memory {
  Memory(PathArenas& arenas, const Attention& attention, const Extents& extents, const Blocking& blocking,
         bool masked) {
    const Geometry& g = attention.geometry;
    Arena& arena = arenas.scratch;
    const std::int64_t keys = blocking.context_block;
    const std::int64_t longest = std::min(keys, extents.keys);
    const std::int64_t tile = mha::sm90::key_tile(g);
    counter = arena.take<std::int32_t>(1).data();
    latent = arena.take<bfloat16>(size_product(keys, g.kv_lora_rank)).data();
    rope_key = arena.take<bfloat16>(size_product(keys, g.qk_rope_head_dim)).data();
    up = arena.take<bfloat16>(size_product(keys, g.num_heads, g.qk_nope_head_dim + g.v_head_dim)).data();
    if (masked) {
      const std::int64_t words = size_product(blocking.query_slice, divide_up(longest, tile), kMaskWords);
      mask = arenas.of_selection().take<std::uint32_t>(words).data();
      if (attention.space == SelectionSpace::cache_slot) {
        map_entries = cuda::page_map_entries(extents.keys, kSmallestPage);
        map = arena.take<std::uint64_t>(size_product(extents.requests, map_entries)).data();
      }
    }
    if (meets_keys_in_blocks(extents, blocking)) {
      accumulated = arena.take<float>(size_product(blocking.query_slice, g.num_heads, g.v_head_dim)).data();
      lse = arena.take<float>(size_product(blocking.query_slice, g.num_heads)).data();
    }
  }

  std::int32_t* counter = nullptr;
  bfloat16* latent = nullptr;
  bfloat16* rope_key = nullptr;
  bfloat16* up = nullptr;
  std::uint32_t* mask = nullptr;
  std::uint64_t* map = nullptr;
  std::int64_t map_entries = 0;
  float* accumulated = nullptr;
  float* lse = nullptr;
};

/// Where entry 0 would be, of spans that begin with a later request's.
const mha::sm90::RequestSpan* span_of_request_0(const mha::sm90::RequestSpan* spans,
                                                std::int64_t first_request) noexcept {
  const auto before = static_cast<std::uintptr_t>(first_request) * sizeof(mha::sm90::RequestSpan);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): no array reaches there
  return reinterpret_cast<const mha::sm90::RequestSpan*>(reinterpret_cast<std::uintptr_t>(spans) - before);
}

/// What has every row meet all of its keys in one pass.
Blocking everything(const Extents& extents, bool masked) noexcept {
  const std::int64_t rows = round_up(extents.rows, kQueryTile) + std::min(extents.rows, extents.requests) * kQueryTile;
  return {.query_slice = masked ? rows : 0, .context_block = std::max<std::int64_t>(extents.total_keys, 1)};
}

/// Bytes that a packed key takes, and those that a row of a slice takes when it meets `keys` keys at once.
std::int64_t key_bytes(const Geometry& g) noexcept {
  return 2 * (g.latent_dim() + g.num_heads * (g.qk_nope_head_dim + g.v_head_dim));
}
std::int64_t mask_bytes(const Geometry& g, std::int64_t keys) noexcept {
  const std::int64_t tile = mha::sm90::key_tile(g);
  return round_up(keys, tile) / tile * kMaskWords * 4;
}
std::int64_t result_bytes(const Geometry& g) noexcept { return 4 * g.num_heads * (g.v_head_dim + 1); }

}  // namespace

std::vector<std::string> MhaSm90::unmet_by_geometry(const Geometry& g) const {
  std::vector<std::string> unmet = mha::sm90::unmet_requirements(g);
  if (g.kv_lora_rank % 8 != 0) {
    unmet.push_back("its products need a kv_lora_rank that is a multiple of 8, not " + std::to_string(g.kv_lora_rank));
  }
  return unmet;
}

bool MhaSm90::serves_rows(const Attention& attention, std::int64_t begin, std::int64_t end, bool exact) const {
  return masked_ || !first_uncovered(attention.rule, begin, end, exact);
}

std::vector<std::string> MhaSm90::unmet_by_rows(const Attention& attention, std::int64_t begin, std::int64_t end,
                                                bool exact) const {
  return masked_ ? std::vector<std::string>() : uncovered_rows(attention.rule, begin, end, exact);
}

Support MhaSm90::support() const {
  static constexpr DType kCompute[] = {DType::bfloat16};
  static constexpr CacheFormat kFormats[] = {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8,
                                             CacheFormat::fp8_ds_mla};
  return {.compute = kCompute, .formats = kFormats};
}

Work MhaSm90::count_work(const Attention& attention, std::int64_t begin, std::int64_t end,
                         std::int64_t query_slice) const {
  Work work = count_mha_work(attention, begin, end, query_slice == 0 || masked_ ? end - begin : query_slice);
  if (masked_) {
    const std::int64_t words = mask_bytes(attention.geometry, end) / 4;
    work.mask_keys = static_cast<double>(end - begin) * static_cast<double>(words + attention.rule.keys_at(end - 1));
  }
  return work;
}

std::int64_t MhaSm90::workspace_bytes(const Attention& attention, const Extents& extents,
                                      const Blocking& blocking) const {
  PathArenas arenas;
  const Memory memory(arenas, attention, extents, blocking, masked_);
  return arenas.scratch.used();
}

std::int64_t MhaSm90::kept_bytes(const Attention& attention, const Extents& extents, const Blocking& blocking) const {
  const Blocking whole = everything(extents, masked_);
  if (blocking.query_slice < whole.query_slice || blocking.context_block < whole.context_block) {
    return 0;
  }
  PathArenas arenas{.scratch = {}, .kept = Arena()};
  const Memory memory(arenas, attention, extents, blocking, masked_);
  return arenas.kept->used();
}

std::int64_t MhaSm90::table_bound(const Attention& attention, const Extents& extents, std::int64_t budget) const {
  const std::int64_t requests = std::min(extents.rows, extents.requests);
  // Slices of at least a query tile; each meets all keys in one pass, or in blocks where they may not fit at once.
  const std::int64_t slices = divide_up(extents.rows, kQueryTile) + requests;
  const std::int64_t pieces = slices * divide_up(extents.keys, least_block(attention, extents, budget));
  return table_bytes<cache::cuda::KeyRun>(pieces) + table_bytes<mha::sm90::RequestSpan>(pieces + extents.requests) +
         table_bytes<mha::sm90::QueryTile>(pieces);
}

std::int64_t MhaSm90::least_block(const Attention& attention, const Extents& extents, std::int64_t budget) const {
  const std::int64_t tile = mha::sm90::key_tile(attention.geometry);
  const auto bytes = [&](std::int64_t keys) {
    return workspace_bytes(attention, extents, {.query_slice = kQueryTile, .context_block = keys});
  };
  if (bytes(extents.keys) <= budget) {
    return std::max<std::int64_t>(extents.keys, 1);
  }
  // choose_blocking takes half of the budget for keys, if the other half is enough for a query tile beside them.
  const std::int64_t half = std::max(tile, round_down(budget / 2 / key_bytes(attention.geometry), tile));
  return bytes(half) <= budget ? half : tile;
}

Blocking MhaSm90::choose_blocking(const Attention& attention, const Extents& extents, std::int64_t budget) const {
  const Geometry& g = attention.geometry;
  const std::int64_t tile = mha::sm90::key_tile(g);
  const std::int64_t longest = std::max<std::int64_t>(extents.keys, 1);
  const std::int64_t request_rows = std::max(kQueryTile, round_up(extents.request_rows, kQueryTile));
  const auto fits = [&](const Blocking& blocking) { return workspace_bytes(attention, extents, blocking) <= budget; };

  const Blocking all = everything(extents, masked_);
  if (fits(all)) {
    return all;
  }
  const Blocking whole{.query_slice = masked_ ? kQueryTile : 0, .context_block = longest};
  Blocking blocking = whole;
  if (fits(blocking)) {
    std::int64_t rest = budget - workspace_bytes(attention, extents, blocking);
    if (masked_) {
      // Half of the rest for rows: one more up-projection of the context is saved for each slice less.
      const std::int64_t rows = round_down(kQueryTile + rest / 2 / mask_bytes(g, longest), kQueryTile);
      blocking.query_slice = std::min(rows, all.query_slice);
      rest = budget - workspace_bytes(attention, extents, blocking);
    }
    blocking.context_block = std::min(all.context_block, longest + rest / key_bytes(g));
    while (blocking.context_block > longest && !fits(blocking)) {
      --blocking.context_block;
    }
    return blocking;
  }
  blocking.context_block = std::clamp(round_down(budget / 2 / key_bytes(g), tile), tile, round_up(longest, tile));
  const std::int64_t row_bytes = result_bytes(g) + (masked_ ? mask_bytes(g, blocking.context_block) : 0);
  const std::int64_t rows = round_down((budget - blocking.context_block * key_bytes(g)) / row_bytes, kQueryTile);
  blocking.query_slice = std::clamp(rows, kQueryTile, request_rows);
  while (blocking.query_slice > kQueryTile && !fits(blocking)) {
    blocking.query_slice -= kQueryTile;
  }
  while (blocking.context_block > tile && !fits(blocking)) {
    blocking.context_block -= tile;
  }
  // Where nothing fits, the least: results that wait for later blocks may take more than a few keys.
  return fits(blocking) || workspace_bytes(attention, extents, blocking) < workspace_bytes(attention, extents, whole)
             ? blocking
             : whole;
}

void MhaSm90::plan_passes(const Plan& plan, std::span<const RowsOnPath> rows, MhaPasses& passes) const {
  const Blocking& blocking = plan.blocking(path());
  plan_mha_passes(rows, static_cast<std::int64_t>(plan.requests().size()),
                  {.keys = blocking.context_block, .slice_rows = blocking.query_slice},
                  mha::sm90::key_tile(plan.attention().geometry), masked_, passes);
}

void MhaSm90::validate(const Call& call) {
  const auto expect_chunks = [](const char* name, const ConstAnyView& view) {
    constexpr std::int64_t kChunk = 16;
    if (reinterpret_cast<std::uintptr_t>(view.data()) % kChunk != 0 || view.stride(0) % 8 != 0 ||
        view.stride(1) % 8 != 0) {
      throw UnsupportedError(name,
                             "an address divisible by 16 bytes and strides by 8 elements, for dense_mha and masked_mha",
                             layout_text(view.data(), kChunk, {view.stride(0), view.stride(1)}, "elements"));
    }
  };
  expect_chunks("q", call.inputs.q);
  expect_chunks("out", call.outputs.out);
  const auto expect_contiguous = [](const char* name, const View<const std::int32_t>& view) {
    if (view.dim(0) > 1 && view.stride(0) != 1) {
      throw UnsupportedError(name, "contiguous entries, for dense_mha and masked_mha",
                             "stride " + std::to_string(view.stride(0)));
    }
  };
  expect_contiguous("query_start", call.inputs.requests.query_start);
  expect_contiguous("seq_len", call.inputs.requests.seq_len);
}

void MhaSm90::run(const Call& call, const Extents& extents, const MhaTables& tables, PathArenas arenas,
                  Stream stream) const {
  const std::byte* memory_of_tables = call.plan.tables();
  const Attention& attention = call.plan.attention();
  const Geometry& g = attention.geometry;
  const Inputs& inputs = call.inputs;
  const bool masks_are_kept = inputs.selection_kept && arenas.kept;
  const Memory memory(arenas, attention, extents, call.plan.blocking(path()), masked_);
  CudaDevice::State& device = call.plan.device().cuda->state();
  const cuda::Projections& projections = *call.plan.device_passes()->projections;
  const std::int64_t requests = inputs.requests.seq_len.dim(0);
  const std::int64_t head_columns = g.qk_nope_head_dim + g.v_head_dim;
  const auto q = inputs.q.as<bfloat16>("q");

  const bool slots = masked_ && attention.space == SelectionSpace::cache_slot;
  cuda::PageMap map;
  if (slots && !masks_are_kept) {
    map.entries = View<std::uint64_t>(memory.map, {requests, memory.map_entries});
    cuda::build_page_map(inputs.cache, inputs.requests, map, stream);
  }
  for (const MhaPass& pass : tables.passes.passes) {
    const View<bfloat16> latent(memory.latent, {pass.keys, g.kv_lora_rank});
    const View<bfloat16> rope_key(memory.rope_key, {pass.keys, g.qk_rope_head_dim});
    const View<bfloat16> up(memory.up, {pass.keys, g.num_heads, head_columns});
    cache::cuda::gather(
        g, attention.format, inputs.cache, inputs.requests,
        View<const cache::cuda::KeyRun>(tables.runs.in(memory_of_tables) + pass.first_run, {pass.num_runs}), latent,
        rope_key, stream, memory.counter);
    projections.up_project(latent, call.weights.kv_b_proj.as<bfloat16>("kv_b_proj"), up, arenas.products, stream);
    const View<const mha::sm90::RequestSpan> spans(tables.spans.in(memory_of_tables) + pass.first_span,
                                                   {pass.num_spans});
    if (masked_ && !masks_are_kept) {
      cuda::build_bit_masks({.rule = attention.rule,
                             .selection = inputs.selection,
                             .requests = inputs.requests,
                             .spans = spans,
                             .first_request = pass.first_request,
                             .key_tile = mha::sm90::key_tile(g),
                             .mask = View<std::uint32_t>(memory.mask, {pass.key_tiles, pass.slice_rows, kMaskWords}),
                             .page_map = map,
                             .page_size = inputs.cache.page_size},
                            stream);
    }
    mha::sm90::Pass launch;
    launch.geometry = g;
    launch.scale = static_cast<float>(attention.scale);
    launch.causal = !slots;
    launch.query = {q.data(), q.dim(0), q.stride(0), q.stride(1)};
    launch.key_nope = {up.data(), pass.keys, up.stride(0), up.stride(1)};
    launch.key_rope = {rope_key.data(), pass.keys, rope_key.stride(0), 0};
    launch.value = {up.data() + g.qk_nope_head_dim, pass.keys, up.stride(0), up.stride(1)};
    launch.query_start = inputs.requests.query_start.data();
    launch.seq_len = inputs.requests.seq_len.data();
    launch.spans = span_of_request_0(spans.data(), pass.first_request);
    launch.tiles = tables.tiles.in(memory_of_tables) + pass.first_tile;
    launch.num_tiles = pass.num_tiles;
    launch.counter = memory.counter;
    launch.counter_is_clear = true;  // gather did it
    launch.mask = masked_ ? memory.mask : nullptr;
    launch.mask_rows = pass.slice_rows;
    if (pass.has_earlier) {
      launch.earlier = memory.accumulated;
      launch.earlier_lse = memory.lse;
    }
    launch.to_slice = pass.to_slice;
    if (pass.to_slice) {
      launch.out = memory.accumulated;
      launch.out_float32 = true;
      launch.out_row_stride = g.num_heads * g.v_head_dim;
      launch.out_head_stride = g.v_head_dim;
      launch.lse = memory.lse;
      launch.lse_row_stride = g.num_heads;
    } else {
      const AnyView& out = call.outputs.out;
      launch.out = out.data();
      launch.out_float32 = out.dtype() == DType::float32;
      launch.out_row_stride = out.stride(0);
      launch.out_head_stride = out.stride(1);
      if (!call.outputs.lse.empty()) {
        launch.lse = call.outputs.lse.data();
        launch.lse_row_stride = call.outputs.lse.stride(0);
      }
      launch.sink = call.weights.sink.empty() ? nullptr : call.weights.sink.data();
    }
    mha::sm90::launch(launch, device.capability.multiprocessors, stream);
  }
}

}  // namespace headrace::attention
