// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/mqa/sm90.h"
#include "attention/mqa/union_list.h"
#include "attention/paths/mqa_blocking.h"
#include "bench_api.h"
#include "capi/attention.h"
#include "capi/errors.h"
#include "capi/handles.h"
#include "device/cuda/device.h"
#include "device/cuda/memory.h"
#include "tensor.h"

using headrace::device::cuda::DeviceArray;
namespace mqa = headrace::attention::mqa;

/// A batch's tables on the device, and room for the lists of all its tiles.
struct HrMqa {
  headrace::Attention attention;
  std::shared_ptr<headrace::CudaDevice> device;
  std::int64_t requests = 0;
  std::int64_t tokens = 0;
  std::int64_t keys = 0;  ///< of the request that has most
  std::int64_t group = 0;
  DeviceArray<std::int32_t> query_start;
  DeviceArray<std::int32_t> seq_len;
  DeviceArray<mqa::PathRows> rows;
  DeviceArray<mqa::TileReference> tiles;
  DeviceArray<std::int32_t> counter;
  DeviceArray<mqa::UnionTile> union_tiles;
  DeviceArray<std::int32_t> list_keys;
  DeviceArray<std::uint64_t> list_masks;
};

namespace headrace::python {
namespace {

void fill_tables(HrMqa& made, const Batch& batch) {
  std::vector<std::int32_t> query_start{0};
  std::vector<mqa::PathRows> rows;
  std::vector<mqa::TileReference> tiles;
  for (std::size_t b = 0; b < batch.query_len.size(); ++b) {
    const std::int32_t end = batch.seq_len_bound[b];
    query_start.push_back(query_start.back() + batch.query_len[b]);
    rows.push_back({.begin = end - batch.query_len[b], .end = end});
    const std::int64_t count = mqa::most_tiles(batch.query_len[b], made.group);
    for (std::int64_t tile = 0; tile < count; ++tile) {
      tiles.push_back({.request = static_cast<std::int32_t>(b), .tile = static_cast<std::int32_t>(tile)});
    }
    made.keys = std::max<std::int64_t>(made.keys, end);
  }
  if (tiles.empty()) {
    throw Error("batch", "query tokens", "none");
  }
  made.requests = static_cast<std::int64_t>(rows.size());
  made.tokens = query_start.back();
  made.query_start = DeviceArray<std::int32_t>(query_start);
  made.seq_len = DeviceArray<std::int32_t>(batch.seq_len_bound);
  made.rows = DeviceArray<mqa::PathRows>(rows);
  made.tiles = DeviceArray<mqa::TileReference>(tiles);
}

std::unique_ptr<HrMqa> make_mqa(const Attention& attention, const Batch& batch, std::shared_ptr<CudaDevice> device) {
  device::cuda::make_current(device->ordinal());
  mqa::load_union_lists();
  mqa::sm90::load();
  auto made = std::make_unique<HrMqa>();
  made->attention = attention;
  made->device = std::move(device);
  made->group = mqa::group_of(attention.geometry.num_heads);
  fill_tables(*made, batch);
  const std::int64_t capacity = attention::list_capacity(attention.rule, made->group, made->keys);
  made->counter = DeviceArray<std::int32_t>(1);
  made->union_tiles = DeviceArray<mqa::UnionTile>(made->tiles.size());
  made->list_keys = DeviceArray<std::int32_t>(made->tiles.size() * capacity);
  made->list_masks = DeviceArray<std::uint64_t>(made->tiles.size() * (capacity / mqa::kKeyBlock) * made->group);
  return made;
}

mqa::UnionLists build_lists(const HrMqa& mqa, const HrMqaCall& call, const Place& place, Stream stream) {
  const std::int64_t tiles = mqa.tiles.size();
  const std::int64_t capacity = mqa.list_keys.size() / tiles;
  const mqa::UnionLists lists{
      .tiles = View<mqa::UnionTile>(mqa.union_tiles.data(), {tiles}),
      .keys = View<std::int32_t>(mqa.list_keys.data(), {tiles, capacity}),
      .masks = View<std::uint64_t>(mqa.list_masks.data(), {tiles, capacity / mqa::kKeyBlock, mqa.group})};
  mqa::build_union_lists(
      {.rule = mqa.attention.rule,
       .selection = {.index = required_input("index", call.index, place).as<std::int32_t>("index"),
                     .count = typed<std::int32_t>("count", optional_input("count", call.count, place))},
       .requests = {.query_start = View<const std::int32_t>(mqa.query_start.data(), {mqa.requests + 1}),
                    .seq_len = View<const std::int32_t>(mqa.seq_len.data(), {mqa.requests}),
                    .block_table = {}},
       .rows = View<const mqa::PathRows>(mqa.rows.data(), {mqa.requests}),
       .tiles = View<const mqa::TileReference>(mqa.tiles.data(), {tiles}),
       .group = mqa.group,
       .tokens = mqa.tokens,
       .keys_bound = mqa.keys,
       .lists = lists,
       .page_map = {}},
      stream);
  return lists;
}

mqa::sm90::KeyRows keys_of(const HrMqa& mqa, const HrMqaCall& call, const Place& place) {
  const auto cache = required_input("cache", call.cache, place).as<bfloat16>("cache");
  cache.expect("cache", {-1, -1, mqa.attention.geometry.latent_dim()});
  const auto table = required_input("block_table", call.block_table, place).as<std::int32_t>("block_table");
  table.expect("block_table", {mqa.requests, -1});
  const std::int64_t size = size_of(DType::bfloat16);
  const CacheView pages{.data = reinterpret_cast<const std::byte*>(cache.data()),
                        .num_pages = cache.dim(0),
                        .page_size = cache.dim(1),
                        .page_stride = cache.stride(0) * size,
                        .row_stride = cache.stride(1) * size};
  return mqa::sm90::rows_in_pages(CacheFormat::bfloat16, pages, table);
}

/// [T, H, R], contiguous.
template <class View>
void expect_latents(const std::string& name, const View& view, const HrMqa& mqa) {
  const Geometry& g = mqa.attention.geometry;
  view.expect(name, {mqa.tokens, g.num_heads, g.kv_lora_rank});
  if (view.stride(2) != 1 || view.stride(1) != g.kv_lora_rank || view.stride(0) != g.num_heads * g.kv_lora_rank) {
    throw Error(name, "a contiguous tensor", "other strides");
  }
}

void run_mqa(const HrMqa& mqa, const HrMqaCall& call) {
  const Geometry& g = mqa.attention.geometry;
  const Place place{true, mqa.device->ordinal()};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a handle of another library, which crossed as a number
  const Stream stream{reinterpret_cast<void*>(call.stream)};
  const auto query = required_input("query", call.query, place).as<bfloat16>("query");
  expect_latents("query", query, mqa);
  const auto out = required_output("out", call.out, place).as<bfloat16>("out");
  expect_latents("out", out, mqa);
  mqa::sm90::Pass pass;
  pass.heads = g.num_heads;
  pass.tokens = mqa.tokens;
  pass.requests = mqa.requests;
  pass.has_rope = g.qk_rope_head_dim != 0;
  pass.scale = static_cast<float>(mqa.attention.scale);
  pass.query = query.data();
  pass.rows_are_tokens = true;
  if (pass.has_rope) {
    const auto rope = required_input("query_rope", call.query_rope, place).as<bfloat16>("query_rope");
    rope.expect("query_rope", {mqa.tokens, g.num_heads, g.qk_rope_head_dim});
    pass.query_rope = rope.data();
    pass.query_rope_stride = rope.stride(0);
    pass.query_rope_head_stride = rope.stride(1);
  }
  pass.keys = keys_of(mqa, call, place);
  pass.lists = build_lists(mqa, call, place, stream);
  pass.attended = out.data();
  pass.counter = mqa.counter.data();
  mqa::sm90::launch(pass, mqa.device->state().capability.multiprocessors, stream);
}

}  // namespace
}  // namespace headrace::python

HrError* hr_mqa_create(const HrAttention* attention, const HrBatch* batch, const HrDevice* device, HrMqa** mqa) {
  namespace py = headrace::python;
  return headrace::capi::guarded([&] {
    *mqa =
        py::make_mqa(headrace::capi::attention_of(attention), headrace::capi::batch_of(batch), device->cuda).release();
  });
}

HrError* hr_mqa_run(const HrMqa* mqa, const HrMqaCall* call) {
  return headrace::capi::guarded([&] { headrace::python::run_mqa(*mqa, *call); });
}

void hr_mqa_free(HrMqa* mqa) { delete mqa; }
