// SPDX-License-Identifier: Apache-2.0
//
// gpu_bench [attend|topk|host]: what attend takes on the GPU, what top-k MQA does, and what the kernels around flash
// attention take beside what their bytes or FLOPs must take.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <string>
#include <vector>

#include "attention/mha/bit_mask_cuda.h"
#include "attention/project_cuda.h"
#include "bench.h"
#include "cache/cuda.h"
#include "device/cuda/memory.h"
#include "device/cuda/probe.h"
#include "support/random.h"

namespace headrace {
namespace {

using attention::mha::sm90::kMaskWords;
using attention::mha::sm90::RequestSpan;
using bench::Bench;
using cache::cuda::KeyRun;
using device::cuda::DeviceArray;
using device::cuda::DeviceBuffer;

constexpr Geometry kGlm{16, 512, 192, 64, 256};

/// One request of `keys` keys in pages of 64, scattered over a cache.
struct Paged {
  Paged(CacheFormat format, const Geometry& geometry, std::int64_t keys, test::Random& random)
      : row_bytes(cache_row_bytes(format, geometry)),
        pages((keys + kPageSize - 1) / kPageSize),
        memory(pages * kPageSize * row_bytes),
        table(pages),
        seq_len(std::vector<std::int32_t>{static_cast<std::int32_t>(keys)}) {
    memory.fill(std::byte{0x11});
    std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
    }
    table.upload(order);
  }
  [[nodiscard]] MutableCacheView cache() const {
    return {memory.data(), pages, kPageSize, kPageSize * row_bytes, row_bytes};
  }
  [[nodiscard]] Requests requests() const {
    return {{}, View<const std::int32_t>(seq_len.data(), {1}), View<const std::int32_t>(table.data(), {1, pages})};
  }

  static constexpr std::int64_t kPageSize = 64;
  std::int64_t row_bytes;
  std::int64_t pages;
  DeviceBuffer memory;
  DeviceArray<std::int32_t> table;
  DeviceArray<std::int32_t> seq_len;
};

void bench_cache(const Bench& bench, const CudaDevice& gpu, CacheFormat format, std::int64_t keys) {
  test::Random random(1);
  const Geometry& g = kGlm;
  const Paged paged(format, g, keys, random);
  const DeviceArray<bfloat16> latent(keys * g.kv_lora_rank);
  const DeviceArray<bfloat16> rope_key(keys * g.qk_rope_head_dim);
  latent.bytes().fill(std::byte{0});
  rope_key.bytes().fill(std::byte{0});
  const DeviceArray<KeyRun> runs(std::vector<KeyRun>{{0, 0, static_cast<std::int32_t>(keys), 0}});
  const auto bytes = static_cast<double>(keys * (paged.row_bytes + 2 * g.latent_dim()));
  const View<bfloat16> latents(latent.data(), {keys, g.kv_lora_rank});
  const View<bfloat16> rope_keys(rope_key.data(), {keys, g.qk_rope_head_dim});
  bench.time(fmt::format("gather {} keys, {}", keys, name_of(format)), bytes, 0.0, [&](Stream stream) {
    cache::cuda::gather(g, format, paged.cache(), paged.requests(), View<const KeyRun>(runs.data(), {1}), latents,
                        rope_keys, stream);
  });
  std::vector<std::int64_t> slots(static_cast<std::size_t>(keys));
  std::iota(slots.begin(), slots.end(), 0);
  const DeviceArray<std::int64_t> device_slots(slots);
  bench.time(fmt::format("append {} keys, {}", keys, name_of(format)), bytes, 0.0, [&](Stream stream) {
    append(g, format, paged.cache(), latents, rope_keys, View<const std::int64_t>(device_slots.data(), {keys}), gpu,
           stream);
  });
}

/// The order of a row's entries, which decides how its bits meet in shared memory.
enum class Order : std::uint8_t { sorted, shuffled };

/// A selection of `width` keys a row that follows the row's position: every key with the chance that fills the row.
std::vector<std::int32_t> random_selection(std::int64_t rows, std::int64_t keys, std::int64_t width, Order order) {
  test::Random random(2);
  std::vector<std::int32_t> index;
  index.reserve(static_cast<std::size_t>(rows * width));
  std::vector<std::int32_t> row;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t visible = keys - rows + r + 1;
    row.clear();
    for (std::int64_t key = 0; key < visible && static_cast<std::int64_t>(row.size()) < width; ++key) {
      const std::int64_t wanted = width - static_cast<std::int64_t>(row.size());
      if (random.below(visible - key) < wanted) {
        row.push_back(static_cast<std::int32_t>(key));
      }
    }
    row.resize(static_cast<std::size_t>(width), -1);
    for (std::size_t i = row.size(); order == Order::shuffled && i > 1; --i) {
      std::swap(row[i - 1], row[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
    }
    index.insert(index.end(), row.begin(), row.end());
  }
  return index;
}

void bench_mask(const Bench& bench, std::int64_t rows, std::int64_t keys, std::int64_t key_tile, Order order) {
  constexpr std::int64_t kWidth = 2048;
  const DeviceArray<std::int32_t> index(random_selection(rows, keys, kWidth, order));
  const DeviceArray<std::int32_t> query_start(std::vector<std::int32_t>{0, static_cast<std::int32_t>(rows)});
  const DeviceArray<std::int32_t> seq_len(std::vector<std::int32_t>{static_cast<std::int32_t>(keys)});
  const DeviceArray<RequestSpan> spans(std::vector<RequestSpan>{{.rows_end = static_cast<std::int32_t>(keys),
                                                                 .row_count = static_cast<std::int32_t>(rows),
                                                                 .keys_end = static_cast<std::int32_t>(keys)}});
  const std::int64_t tiles = (keys + key_tile - 1) / key_tile;
  const DeviceArray<std::uint32_t> mask(tiles * rows * kMaskWords);
  attention::cuda::MaskPass pass;
  pass.rule = SelectionRule::opaque();
  pass.selection.index = View<const std::int32_t>(index.data(), {rows, kWidth});
  pass.requests.query_start = View<const std::int32_t>(query_start.data(), {2});
  pass.requests.seq_len = View<const std::int32_t>(seq_len.data(), {1});
  pass.spans = View<const RequestSpan>(spans.data(), {1});
  pass.key_tile = key_tile;
  pass.mask = View<std::uint32_t>(mask.data(), {tiles, rows, kMaskWords});
  const auto bytes = static_cast<double>(rows * kWidth * 4 + tiles * rows * kMaskWords * 4);
  bench.time(fmt::format("bit masks {} rows x {} keys, tiles of {}, {}", rows, keys, key_tile,
                         order == Order::sorted ? "sorted" : "shuffled"),
             bytes, 0.0, [&](Stream stream) { attention::cuda::build_bit_masks(pass, stream); });
}

void bench_products(const Bench& bench) {
  const Geometry& g = kGlm;
  const std::int64_t head_rows = g.qk_nope_head_dim + g.v_head_dim;
  constexpr std::int64_t kMost = 16384;
  const DeviceArray<bfloat16> weights(g.num_heads * head_rows * g.kv_lora_rank);
  const DeviceArray<bfloat16> latent(kMost * g.num_heads * g.kv_lora_rank);
  const DeviceArray<bfloat16> wide(kMost * g.num_heads * head_rows);
  // Random bits with moderate exponents: zeros would run faster than numbers do.
  test::Random random(3);
  std::vector<bfloat16> values(static_cast<std::size_t>(1 << 20));
  for (bfloat16& value : values) {
    value = bfloat16(random.normal());
  }
  for (const DeviceArray<bfloat16>* array : {&weights, &latent, &wide}) {
    for (std::int64_t at = 0; at < array->size(); at += static_cast<std::int64_t>(values.size())) {
      const auto n = std::min<std::int64_t>(static_cast<std::int64_t>(values.size()), array->size() - at);
      array->bytes().upload(std::as_bytes(std::span(values).first(static_cast<std::size_t>(n))), 2 * at);
    }
  }
  const device::cuda::ProductLibrary library;
  const attention::cuda::Projections projections(library, g);
  projections.warm_up(bench.stream());
  const device::cuda::DeviceBuffer workspace(projections.workspace_bytes());
  const std::span<std::byte> scratch(workspace.data(), static_cast<std::size_t>(workspace.size_bytes()));
  const View<const bfloat16> kv_b_proj(weights.data(), {g.num_heads * head_rows, g.kv_lora_rank});
  const double head_flops = 2.0 * static_cast<double>(g.num_heads * g.kv_lora_rank);
  for (const std::int64_t n : {64, 128, 512, 1024, 2048, 4096, 8192, 16384}) {
    const auto rows = static_cast<double>(n);
    bench.time(fmt::format("up-projection of {} keys", n), 0.0, rows * head_flops * static_cast<double>(head_rows),
               [&](Stream stream) {
                 projections.up_project(View<const bfloat16>(latent.data(), {n, g.kv_lora_rank}), kv_b_proj,
                                        View<bfloat16>(wide.data(), {n, g.num_heads, head_rows}), scratch, stream);
               });
  }
  for (const std::int64_t n : {128, 1024, 8192}) {
    const auto rows = static_cast<double>(n);
    bench.time(fmt::format("absorption of {} query tokens", n), 0.0,
               rows * head_flops * static_cast<double>(g.qk_nope_head_dim), [&](Stream stream) {
                 projections.absorb_query(View<const bfloat16>(wide.data(), {n, g.num_heads, g.qk_head_dim()}),
                                          kv_b_proj, View<bfloat16>(latent.data(), {n, g.num_heads, g.kv_lora_rank}),
                                          scratch, stream);
               });
    bench.time(fmt::format("values of {} query tokens", n), 0.0, rows * head_flops * static_cast<double>(g.v_head_dim),
               [&](Stream stream) {
                 projections.project_values(View<const bfloat16>(latent.data(), {n, g.num_heads, g.kv_lora_rank}),
                                            kv_b_proj, View<bfloat16>(wide.data(), {n, g.num_heads, g.v_head_dim}),
                                            scratch, stream);
               });
  }
}

/// @param only  `attend`: what a step as a whole takes; `topk`: top-k MQA; `host`: the host's time; `products`: matrix
///              products; else everything
/// @return false where a result is wrong
bool run(const std::string& only) {
  const auto gpu = device::cuda::probe(0);
  fmt::print("{}, {} multiprocessors, L2 {} MiB, driver for CUDA {}, runtime {}\n", gpu.name, gpu.multiprocessors,
             gpu.l2_bytes >> 20, gpu.driver_version, gpu.runtime_version);
  device::cuda::make_current(0);
  if (only == "host") {
    bench::bench_host();
    return true;
  }
  const Bench bench;
  if (only == "products") {
    bench_products(bench);
    return true;
  }
  if (only != "topk" && !bench::bench_attend(bench)) {
    return false;
  }
  if (only == "attend") {
    return true;
  }
  bench::bench_topk(bench);
  if (only == "topk") {
    return true;
  }
  const CudaDevice device(0);
  for (const CacheFormat format : {CacheFormat::bfloat16, CacheFormat::fp8, CacheFormat::fp8_ds_mla}) {
    for (const std::int64_t keys : {16384, 131072}) {
      bench_cache(bench, device, format, keys);
    }
  }
  for (const Order order : {Order::sorted, Order::shuffled}) {
    bench_mask(bench, 16384, 16384, 64, order);
    bench_mask(bench, 16384, 16384, 80, order);
    bench_mask(bench, 16384, 16384, 128, order);
    bench_mask(bench, 8192, 8192, 64, order);
    bench_mask(bench, 4096, 131072, 64, order);
  }
  bench_products(bench);
  return true;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  try {
    if (headrace::device::cuda::device_count() == 0) {
      fmt::print("gpu_bench: there is no GPU here\n");
      return 1;
    }
    return headrace::run(argc > 1 ? argv[1] : "") ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_bench: {}\n", error.what());
    return 1;
  }
}
