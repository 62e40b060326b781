// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/mha/bit_mask_cuda.h"
#include "attention/mha/sm90.h"
#include "attention/paths/mha_passes.h"
#include "bench_api.h"
#include "capi/attention.h"
#include "capi/errors.h"
#include "capi/handles.h"
#include "device/cuda/device.h"
#include "device/cuda/memory.h"
#include "tensor.h"

using headrace::device::cuda::DeviceArray;
namespace mha = headrace::attention::mha::sm90;

/// A batch's tables on the device: one pass with every request in it.
struct HrMha {
  headrace::Attention attention;
  std::shared_ptr<headrace::CudaDevice> device;
  std::int64_t requests = 0;
  headrace::attention::MhaPass pass;
  DeviceArray<mha::RequestSpan> spans;
  DeviceArray<mha::QueryTile> tiles;
  DeviceArray<std::int32_t> query_start;
  DeviceArray<std::int32_t> seq_len;
  DeviceArray<std::int32_t> counter;
  DeviceArray<std::uint32_t> mask;  ///< empty where calls bring no selection
};

namespace headrace::python {
namespace {

std::unique_ptr<HrMha> make_mha(const Attention& attention, const Batch& batch, std::shared_ptr<CudaDevice> device,
                                bool masked) {
  device::cuda::make_current(device->ordinal());
  mha::load(attention.geometry);
  std::vector<attention::RowsOnPath> rows;
  std::vector<std::int32_t> query_start{0};
  for (std::size_t b = 0; b < batch.query_len.size(); ++b) {
    const std::int32_t context = batch.seq_len_bound[b] - batch.query_len[b];
    rows.push_back({.request = static_cast<std::int64_t>(b),
                    .begin = context,
                    .end = batch.seq_len_bound[b],
                    .row_count = batch.query_len[b],
                    .first_position = context,
                    .keys = batch.seq_len_bound[b]});
    query_start.push_back(query_start.back() + batch.query_len[b]);
  }
  constexpr std::int64_t kEverything = std::numeric_limits<std::int64_t>::max();
  const auto requests = static_cast<std::int64_t>(rows.size());
  attention::MhaPasses passes;
  attention::plan_mha_passes(rows, requests, {.keys = kEverything, .slice_rows = kEverything},
                             mha::key_tile(attention.geometry), masked, passes);
  if (passes.passes.size() != 1) {
    throw Error("batch", "query tokens", "none");
  }
  auto made = std::make_unique<HrMha>();
  made->attention = attention;
  made->device = std::move(device);
  made->requests = requests;
  made->pass = passes.passes.front();
  made->spans = DeviceArray<mha::RequestSpan>(passes.spans);
  made->tiles = DeviceArray<mha::QueryTile>(passes.tiles);
  made->query_start = DeviceArray<std::int32_t>(query_start);
  made->seq_len = DeviceArray<std::int32_t>(batch.seq_len_bound);
  made->counter = DeviceArray<std::int32_t>(1);
  if (masked) {
    made->mask = DeviceArray<std::uint32_t>(made->pass.key_tiles * made->pass.slice_rows * mha::kMaskWords);
  }
  return made;
}

template <class View>
void expect_contiguous(const std::string& name, const View& view) {
  const std::int64_t stride = view.stride(view.rank() - 1);
  if (stride != 1) {
    throw Error(name, "a contiguous last dimension", "stride " + std::to_string(stride));
  }
}

mha::HeadMatrix matrix(const std::string& name, const HrTensor& tensor, const Place& place,
                       std::initializer_list<std::int64_t> shape) {
  const auto view = required_input(name, tensor, place).as<bfloat16>(name);
  view.expect(name, shape);
  expect_contiguous(name, view);
  return {view.data(), view.dim(0), view.stride(0), view.rank() == 3 ? view.stride(1) : 0};
}

void build_mask(const HrMha& mha, const HrMhaCall& call, const Place& place, Stream stream) {
  attention::cuda::build_bit_masks(
      {.rule = mha.attention.rule,
       .selection = {.index = required_input("index", call.index, place).as<std::int32_t>("index"),
                     .count = typed<std::int32_t>("count", optional_input("count", call.count, place))},
       .requests = {.query_start = View<const std::int32_t>(mha.query_start.data(), {mha.requests + 1}),
                    .seq_len = View<const std::int32_t>(mha.seq_len.data(), {mha.requests}),
                    .block_table = {}},
       .spans = View<const mha::RequestSpan>(mha.spans.data(), {mha.requests}),
       .key_tile = mha::key_tile(mha.attention.geometry),
       .mask = View<std::uint32_t>(mha.mask.data(), {mha.pass.key_tiles, mha.pass.slice_rows, mha::kMaskWords}),
       .page_map = {}},
      stream);
}

void run_mha(const HrMha& mha, const HrMhaCall& call) {
  const Geometry& g = mha.attention.geometry;
  const Place place{true, mha.device->ordinal()};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a handle of another library, which crossed as a number
  const Stream stream{reinterpret_cast<void*>(call.stream)};
  mha::Pass launch;
  launch.geometry = g;
  launch.scale = static_cast<float>(mha.attention.scale);
  launch.query = matrix("q", call.q, place, {-1, g.num_heads, g.qk_head_dim()});
  launch.key_nope = matrix("key_nope", call.key_nope, place, {mha.pass.keys, g.num_heads, g.qk_nope_head_dim});
  if (g.qk_rope_head_dim > 0) {
    launch.key_rope = matrix("key_rope", call.key_rope, place, {mha.pass.keys, g.qk_rope_head_dim});
  }
  launch.value = matrix("value", call.value, place, {mha.pass.keys, g.num_heads, g.v_head_dim});
  launch.query_start = mha.query_start.data();
  launch.seq_len = mha.seq_len.data();
  launch.spans = mha.spans.data();
  launch.tiles = mha.tiles.data();
  launch.num_tiles = mha.pass.num_tiles;
  launch.counter = mha.counter.data();
  if (mha.mask.size() > 0) {
    build_mask(mha, call, place, stream);
    launch.mask = mha.mask.data();
    launch.mask_rows = mha.pass.slice_rows;
  }
  const AnyView out = required_output("out", call.out, place);
  out.expect("out", {launch.query.rows, g.num_heads, g.v_head_dim});
  expect_contiguous("out", out);
  launch.out = out.data();
  launch.out_float32 = out.dtype() == DType::float32;
  if (!launch.out_float32) {
    expect_dtype("out", DType::bfloat16, out.dtype());
  }
  launch.out_row_stride = out.stride(0);
  launch.out_head_stride = out.stride(1);
  const auto lse = typed<float>("lse", optional_output("lse", call.lse, place));
  if (!lse.empty()) {
    lse.expect("lse", {launch.query.rows, g.num_heads});
    expect_contiguous("lse", lse);
    launch.lse = lse.data();
    launch.lse_row_stride = lse.stride(0);
  }
  mha::launch(launch, mha.device->state().capability.multiprocessors, stream);
}

}  // namespace
}  // namespace headrace::python

HrError* hr_mha_create(const HrAttention* attention, const HrBatch* batch, const HrDevice* device, int32_t masked,
                       HrMha** mha) {
  namespace py = headrace::python;
  return headrace::capi::guarded([&] {
    *mha = py::make_mha(headrace::capi::attention_of(attention), headrace::capi::batch_of(batch), device->cuda,
                        masked != 0)
               .release();
  });
}

HrError* hr_mha_run(const HrMha* mha, const HrMhaCall* call) {
  return headrace::capi::guarded([&] { headrace::python::run_mha(*mha, *call); });
}

void hr_mha_free(HrMha* mha) { delete mha; }
