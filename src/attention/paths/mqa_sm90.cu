// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "attention/device_passes.h"
#include "attention/mqa/slot_rows.h"
#include "attention/mqa/sm90.h"
#include "attention/paths/mqa_blocking.h"
#include "attention/paths/mqa_sm90.h"
#include "attention/project_cuda.h"
#include "cache/cuda.h"
#include "device/cuda/device.h"
#include "headrace/error.h"

namespace headrace::attention {
namespace {

/// One call.
class MqaRun {
 public:
  MqaRun(const Call& call, const Extents& extents, const MqaTables& tables, PathArenas& arenas, Stream stream)
      : call_(call),
        attention_(call.plan.attention()),
        geometry_(attention_.geometry),
        tables_(tables),
        lists_are_kept_(call.inputs.selection_kept && arenas.kept),
        memory_(arenas, attention_, extents, call.plan.blocking(Path::topk_mqa)),
        products_(arenas.products),
        device_(call.plan.device().cuda->state()),
        projections_(*call.plan.device_passes()->projections),
        q_(call.inputs.q.as<bfloat16>("q")),
        kv_b_proj_(call.weights.kv_b_proj.as<bfloat16>("kv_b_proj")),
        requests_(call.inputs.requests.seq_len.dim(0)),
        stream_(stream) {}

  void run() {
    if (attention_.space == SelectionSpace::cache_slot && !lists_are_kept_) {
      map_.entries = View<std::uint64_t>(memory_.page_map, {requests_, memory_.page_map_entries});
      cuda::build_page_map(call_.inputs.cache, call_.inputs.requests, map_, stream_);
    }
    const View<bfloat16> tokens(memory_.query, {q_.dim(0), geometry_.num_heads, geometry_.kv_lora_rank});
    if (memory_.rows_are_tokens) {
      projections_.absorb_query(q_, kv_b_proj_, tokens, products_, stream_);
    }
    for (const MqaStage& stage : tables_.passes.stages) {
      const mqa::sm90::KeyRows keys = stage.num_runs > 0 ? convert(stage) : keys_in_pages();
      for (std::int64_t s = stage.first_slice; s < stage.first_slice + stage.num_slices; ++s) {
        const MqaSlice& slice = tables_.passes.slices[static_cast<std::size_t>(s)];
        if (memory_.rows_are_tokens) {
          launch(build_lists(slice), keys, tokens);
        } else {
          attend_slots(slice, keys);
        }
      }
    }
    if (memory_.rows_are_tokens) {
      projections_.project_values(tokens, kv_b_proj_, call_.outputs.out, products_, stream_);
    }
  }

 private:
  /// Writes a stage's keys to the workspace, latent and rope key of each next to each other.
  [[nodiscard]] mqa::sm90::KeyRows convert(const MqaStage& stage) const {
    const std::int64_t row = geometry_.latent_dim();
    const View<bfloat16> latent(memory_.converted, 2, {stage.keys, geometry_.kv_lora_rank}, {row, 1});
    const View<bfloat16> rope_key(memory_.converted + geometry_.kv_lora_rank, 2,
                                  {stage.keys, geometry_.qk_rope_head_dim}, {row, 1});
    cache::cuda::gather(
        geometry_, attention_.format, call_.inputs.cache, call_.inputs.requests,
        View<const cache::cuda::KeyRun>(tables_.runs.in(call_.plan.tables()) + stage.first_run, {stage.num_runs}),
        latent, rope_key, stream_);
    mqa::sm90::KeyRows keys;
    keys.data = reinterpret_cast<const std::byte*>(memory_.converted);
    keys.row_stride = row * size_of(DType::bfloat16);
    keys.first_row = tables_.first_rows.in(call_.plan.tables());
    keys.num_rows = stage.keys;
    return keys;
  }

  [[nodiscard]] mqa::sm90::KeyRows keys_in_pages() const {
    return mqa::sm90::rows_in_pages(attention_.format, call_.inputs.cache, call_.inputs.requests.block_table);
  }

  void attend_slots(const MqaSlice& slice, const mqa::sm90::KeyRows& keys) const {
    const mqa::UnionLists lists = build_lists(slice);
    const std::int64_t rows = slice.num_tiles * memory_.group;
    const View<bfloat16> query(memory_.query, {rows, geometry_.num_heads, geometry_.kv_lora_rank});
    const View<bfloat16> nope(reinterpret_cast<bfloat16*>(memory_.slots),
                              {rows, geometry_.num_heads, geometry_.qk_nope_head_dim});
    mqa::copy_to_slots(lists.tiles, memory_.group, q_, nope, stream_);
    projections_.absorb_query(nope, kv_b_proj_, query, products_, stream_);
    launch(lists, keys, query);
    const std::int64_t v = geometry_.v_head_dim;
    const AnyView values(memory_.slots, call_.outputs.out.dtype(), 3, {rows, geometry_.num_heads, v},
                         {geometry_.num_heads * v, v, 1});
    projections_.project_values(query, kv_b_proj_, values, products_, stream_);
    mqa::copy_from_slots(lists.tiles, memory_.group, values, call_.outputs.out, stream_);
  }

  [[nodiscard]] mqa::UnionLists build_lists(const MqaSlice& slice) const {
    const std::int64_t capacity = list_capacity(attention_.rule, memory_.group, slice.keys);
    const std::int64_t first = memory_.has_all_lists ? slice.first_tile : 0;
    const std::int64_t first_key = first * memory_.capacity;
    const mqa::UnionLists lists{
        .tiles = View<mqa::UnionTile>(memory_.union_tiles + first, {slice.num_tiles}),
        .keys = View<std::int32_t>(memory_.list_keys + first_key, {slice.num_tiles, capacity}),
        .masks = View<std::uint64_t>(memory_.list_masks + first_key / mqa::kKeyBlock * memory_.group,
                                     {slice.num_tiles, capacity / mqa::kKeyBlock, memory_.group})};
    if (lists_are_kept_) {
      return lists;
    }
    mqa::build_union_lists({.rule = attention_.rule,
                            .selection = call_.inputs.selection,
                            .requests = call_.inputs.requests,
                            .rows = View<const mqa::PathRows>(tables_.rows.in(call_.plan.tables()), {requests_}),
                            .tiles = View<const mqa::TileReference>(
                                tables_.tiles.in(call_.plan.tables()) + slice.first_tile, {slice.num_tiles}),
                            .group = memory_.group,
                            .tokens = q_.dim(0),
                            .keys_bound = slice.keys,
                            .lists = lists,
                            .page_map = map_,
                            .page_size = call_.inputs.cache.page_size,
                            .counter = memory_.counter},
                           stream_);
    return lists;
  }

  /// What comes out takes the place of the absorbed queries.
  void launch(const mqa::UnionLists& lists, const mqa::sm90::KeyRows& keys, const View<bfloat16>& query) const {
    mqa::sm90::Pass pass;
    pass.heads = geometry_.num_heads;
    pass.tokens = q_.dim(0);
    pass.requests = requests_;
    pass.has_rope = geometry_.qk_rope_head_dim != 0;
    pass.scale = static_cast<float>(attention_.scale);
    pass.query = query.data();
    pass.rows_are_tokens = memory_.rows_are_tokens;
    pass.query_rope = q_.data() + geometry_.qk_nope_head_dim;
    pass.query_rope_stride = q_.stride(0);
    pass.query_rope_head_stride = q_.stride(1);
    pass.keys = keys;
    pass.lists = lists;
    pass.attended = query.data();
    if (!call_.outputs.lse.empty()) {
      pass.lse = call_.outputs.lse.data();
      pass.lse_row_stride = call_.outputs.lse.stride(0);
    }
    pass.sink = call_.weights.sink.empty() ? nullptr : call_.weights.sink.data();
    pass.counter = memory_.counter;
    pass.counter_is_clear = !lists_are_kept_;  // what builds them has done it
    mqa::sm90::launch(pass, device_.capability.multiprocessors, stream_);
  }

  const Call& call_;
  const Attention& attention_;
  const Geometry& geometry_;
  const MqaTables& tables_;
  bool lists_are_kept_;  ///< those of the call before
  MqaMemory memory_;
  std::span<std::byte> products_;
  CudaDevice::State& device_;
  const cuda::Projections& projections_;
  View<const bfloat16> q_;
  View<const bfloat16> kv_b_proj_;
  std::int64_t requests_;
  Stream stream_;
  cuda::PageMap map_;
};

}  // namespace

Support MqaSm90::support() const {
  static constexpr DType kCompute[] = {DType::bfloat16};
  static constexpr CacheFormat kFormats[] = {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8,
                                             CacheFormat::fp8_ds_mla};
  return {.compute = kCompute, .formats = kFormats};
}

std::vector<std::string> MqaSm90::unmet_by_geometry(const Geometry& g) const {
  std::vector<std::string> unmet = mqa::sm90::unmet_requirements(g);
  if (g.qk_nope_head_dim % 8 != 0 || g.v_head_dim % 8 != 0) {
    unmet.push_back("its products need a qk_nope_head_dim and a v_head_dim that are multiples of 8, not " +
                    std::to_string(g.qk_nope_head_dim) + " and " + std::to_string(g.v_head_dim));
  }
  return unmet;
}

Work MqaSm90::count_work(const Attention& attention, std::int64_t begin, std::int64_t end,
                         std::int64_t query_slice) const {
  return count_mqa_work(attention, begin, end, query_slice);
}

std::int64_t MqaSm90::workspace_bytes(const Attention& attention, const Extents& extents,
                                      const Blocking& blocking) const {
  PathArenas arenas;
  const MqaMemory memory(arenas, attention, extents, blocking);
  return arenas.scratch.used();
}

std::int64_t MqaSm90::kept_bytes(const Attention& attention, const Extents& extents, const Blocking& blocking) const {
  PathArenas arenas{.scratch = {}, .kept = Arena()};
  const MqaMemory memory(arenas, attention, extents, blocking);
  return memory.has_all_lists ? arenas.kept->used() : 0;
}

std::int64_t MqaSm90::table_bound(const Attention& attention, const Extents& extents, std::int64_t /*budget*/) const {
  return table_bytes<mqa::PathRows>(extents.requests) + table_bytes<mqa::TileReference>(all_tiles(attention, extents)) +
         table_bytes<cache::cuda::KeyRun>(std::min(extents.rows, extents.requests)) +
         table_bytes<std::int64_t>(extents.requests);
}

Blocking MqaSm90::choose_blocking(const Attention& attention, const Extents& extents, std::int64_t budget) const {
  return choose_mqa_blocking(attention, extents, budget);
}

void MqaSm90::plan_passes(const Plan& plan, std::span<RowsOnPath> rows, MqaPasses& passes) {
  const Blocking& blocking = plan.blocking(Path::topk_mqa);
  const std::int64_t group = mqa::group_of(plan.attention().geometry.num_heads);
  for (RowsOnPath& some : rows) {
    some.converts = converts_keys(plan.attention(), blocking, some.row_count, some.keys);
  }
  plan_mqa_passes(rows, static_cast<std::int64_t>(plan.requests().size()), group,
                  {.tiles = blocking.query_slice / group, .keys = blocking.context_block}, passes);
}

void MqaSm90::validate(const Call& call, std::int64_t tokens) {
  if (call.inputs.q.dim(0) > tokens) {
    throw Error("q", "at most the " + std::to_string(tokens) + " tokens that the plan was made for",
                std::to_string(call.inputs.q.dim(0)));
  }
}

void MqaSm90::run(const Call& call, const Extents& extents, const MqaTables& tables, PathArenas arenas,
                  Stream stream) const {
  MqaRun(call, extents, tables, arenas, stream).run();
}

void MqaSm90::load() {
  mqa::sm90::load();
  mqa::load_union_lists();
  mqa::load_slot_rows();
  cuda::load_bit_masks();  // with them the page map
}

}  // namespace headrace::attention
