// SPDX-License-Identifier: Apache-2.0
//
// Attention over gathered latents for sm_90a: a tile of 64 rows (neighbouring queries, each with all its heads, or 64
// heads of one query) walks over the union of its queries' selections in blocks of 64 keys.
//
// A block of 384 threads, one a multiprocessor, takes tiles from a queue until none is left:
//   warp groups 0, 1  hold the left and the right 256 columns of the tile's output. The scores S = Q K^T of block b are
//                     the work of group b % 2, which also makes them weights P; then both groups do O += P V with their
//                     half of the columns, the maker from its registers, the other from shared memory.
//   warp group 2      gathers: queries, then K blocks, row by row, in 16-byte copies to where the products want them;
//                     quantised rows on their way through its registers. A kernel of its own reads rows that do not
//                     lie at multiples of 16 bytes, of any format, value by value.
// While one group works on a softmax the other one's products run: S of block b + 1 beside the softmax of block b, and
// P V of block b beside the softmax of block b + 1. Both groups add the blocks in the same order and rescale by the
// same running maxima, which travel with P, so that the two halves of a row are halves of one sum.
//
// Shared memory at d_qk 576, of 232,448 bytes:
//   Q            64 x 576 x 2                   73,728
//   K, twice     64 x 576 x 2                  147,456   V is the first 512 columns of K
//   P            64 x 64 x 2                     8,192   one buffer: who reads it writes it next (a warp's rows
//                                                        are read by that warp of the other group alone)
//   maxima, sums, barriers, the queue            1,456
//                                              230,832   (d_qk 512: 206,256), rounded up to whole KiB
// A buffer of K is given back in halves, so that the left half is filled again while the right one is still read.
// Registers of a thread: 128 of output, 32 of scores, 16 of weights; 224 for the two groups and 56 for the third, or
// 208 and 88 where it keeps codes: with less the compiler would serialise the products. It spills 40 bytes at d_qk 512,
// and with codes 60 (576) to 260 (512).
//
// Floor of a block of keys: 2 x 64 x 64 x (d_qk + 512) FLOPs are 2176 cycles of the tensor cores at 576, 2048 at 512.
// Beside them shared memory moves (A and B of S: 4 KiB for each 16 columns, 1152 cycles at 576; V and P: 576; the
// copies into it: 576) 2304 cycles, so that the kernel lies on both limits; 34 bytes a cycle come from L2, which may
// give less and then is the third.
//
// Which keys a row attends to is in the lists' masks. A key outside the cache, and what fills the last block up, is
// zeroed, not only masked: 0 * NaN is NaN.

#include <cutlass/arch/reg_reconfig.h>

#include <algorithm>
#include <limits>
#include <string>

#include "attention/mqa/sm90.h"
#include "attention/mqa/sm90_attend.cuh"
#include "attention/mqa/sm90_gather.cuh"
#include "attention/mqa/sm90_tile.cuh"
#include "core/layout_text.h"
#include "device/cuda/check.cuh"
#include "device/cuda/launch.cuh"
#include "headrace/error.h"

namespace headrace::attention::mqa::sm90 {
namespace {

using device::cuda::check;

/// All registers that the block has from its launch (168 a thread) go round, and no more: a warp group that asks for
/// more than the others give back waits for ever.
template <CacheFormat kFormat>
struct Registers {
  static constexpr std::uint32_t kConsumer = kFormat == CacheFormat::bfloat16 ? 224 : 208;
  static constexpr std::uint32_t kProducer = 3 * 168 - kConsumers * kConsumer;
};

template <int kQk, CacheFormat kFormat>
__global__ void __launch_bounds__(kThreads, 1) mqa_kernel(const __grid_constant__ Params p) {
  auto& smem = *device::cuda::dynamic_shared<SharedStorage<kQk>>();
  const int group = static_cast<int>(threadIdx.x) / kWarpGroup;
  if (threadIdx.x == 0) {
    constexpr int kWarps = kWarpGroup / kWarp;
    // Rope queries that are stored beside copied latents arrive by themselves.
    constexpr bool kStored = kFormat == kAnyRows && kQk > kRank;
    Barrier::init(&smem.full_q, kStored ? 2 * kWarpGroup : kWarpGroup);
    Barrier::init(&smem.empty_q, kConsumers * kWarps);
    for (int i = 0; i < 2; ++i) {
      // A rope key that is copied beside converted columns arrives by itself.
      constexpr bool kMixed = kFormat == CacheFormat::fp8_ds_mla && kQk > kRank;
      Barrier::init(&smem.full_k[i][0], kWarpGroup);
      Barrier::init(&smem.full_k[i][1], kMixed ? 2 * kWarpGroup : kWarpGroup);
      for (int half = 0; half < kConsumers; ++half) {
        Barrier::init(&smem.empty_k[i][half], kWarps);
      }
      Barrier::init(&smem.full_work[i], 1);
      Barrier::init(&smem.empty_work[i], (kConsumers + 1) * kWarps);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  if (group == kConsumers) {
    cutlass::arch::warpgroup_reg_dealloc<Registers<kFormat>::kProducer>();
    Producer<kQk, kFormat>(p, smem).run();
  } else if (group == 0) {
    cutlass::arch::warpgroup_reg_alloc<Registers<kFormat>::kConsumer>();
    Consumer<kQk, 0>(p, smem).run();
  } else {
    cutlass::arch::warpgroup_reg_alloc<Registers<kFormat>::kConsumer>();
    Consumer<kQk, 1>(p, smem).run();
  }
}

/// Lets a block of the kernel have the shared memory it needs, which also loads its code.
template <int kQk, CacheFormat kFormat>
void load_kernel() {
  static_assert(sizeof(SharedStorage<kQk>) <= 232448, "more shared memory than a block of sm_90 has");
  device::cuda::allow_shared_memory(mqa_kernel<kQk, kFormat>, sizeof(SharedStorage<kQk>));
}

/// Calls use.operator()<d_qk, format>() for a kernel. @param format  or kAnyRows
template <class Use>
void with_kernel(bool has_rope, CacheFormat format, const Use& use) {
  const auto with_format = [&]<int kQk>() {
    switch (format) {
      case CacheFormat::bfloat16:
        return use.template operator()<kQk, CacheFormat::bfloat16>();
      case CacheFormat::fp8:
        return use.template operator()<kQk, CacheFormat::fp8>();
      case CacheFormat::fp8_ds_mla:
        return use.template operator()<kQk, CacheFormat::fp8_ds_mla>();
      case kAnyRows:
        return use.template operator()<kQk, kAnyRows>();
    }
  };
  has_rope ? with_format.template operator()<kRank + kRope>() : with_format.template operator()<kRank>();
}

/// @param strides  in bytes
bool is_aligned(const void* address, std::initializer_list<std::int64_t> strides) {
  return reinterpret_cast<std::uintptr_t>(address) % kChunkBytes == 0 &&
         std::ranges::all_of(strides, [](std::int64_t stride) { return stride % kChunkBytes == 0; });
}

/// The kernel that reads a pass's keys and queries: 16 bytes at once, where they lie so, or value by value.
CacheFormat reader_of(const Pass& pass) {
  const KeyRows& keys = pass.keys;
  const bool one_page = keys.first_row == nullptr && keys.num_pages <= 1;
  const bool aligned =
      is_aligned(keys.data, {one_page ? 0 : keys.page_stride, keys.row_stride}) &&
      (!pass.has_rope || is_aligned(pass.query_rope, {pass.query_rope_stride * 2, pass.query_rope_head_stride * 2}));
  return aligned ? keys.format : kAnyRows;
}

void expect_aligned(const char* name, const void* address) {
  if (!is_aligned(address, {})) {
    throw Error(name, "an address divisible by 16 bytes", layout_text(address, kChunkBytes));
  }
}

Params params_of(const Pass& pass) {
  Params p{};
  p.query = static_cast<const std::byte*>(pass.query);
  p.query_rope = static_cast<const __nv_bfloat16*>(pass.query_rope);
  p.query_rope_stride = pass.query_rope_stride;
  p.query_rope_head_stride = pass.query_rope_head_stride;
  p.keys = pass.keys;
  // No position reaches past a page as large as that, and no list names more tokens or requests.
  constexpr std::int64_t kMostOfAny = std::numeric_limits<std::int32_t>::max();
  p.divide_by_page =
      cutlass::FastDivmod(static_cast<int>(std::clamp(pass.keys.page_size, std::int64_t{1}, kMostOfAny)));
  p.tiles = pass.lists.tiles.data();
  p.list = pass.lists.keys.data();
  p.masks = pass.lists.masks.data();
  p.capacity = pass.lists.keys.dim(1);
  p.attended = static_cast<__nv_bfloat16*>(pass.attended);
  p.lse = pass.lse;
  p.lse_row_stride = pass.lse_row_stride;
  p.sink = pass.sink;
  p.counter = pass.counter;
  p.num_tiles = static_cast<std::int32_t>(pass.lists.tiles.dim(0));
  p.tokens = static_cast<std::int32_t>(std::min(pass.tokens, kMostOfAny));
  p.requests = static_cast<std::int32_t>(std::min(pass.requests, kMostOfAny));
  p.parts = static_cast<std::int32_t>((pass.heads + kTileRows - 1) / kTileRows);
  p.heads = static_cast<std::int32_t>(pass.heads);
  p.group = static_cast<std::int32_t>(group_of(pass.heads));
  p.scale_log2 = pass.scale * kLog2e;
  p.rows_are_tokens = pass.rows_are_tokens;
  return p;
}

void validate(const Pass& pass) {
  expect_aligned("query", pass.query);
  expect_aligned("attended", pass.attended);
  if (pass.keys.first_row != nullptr && pass.keys.format != CacheFormat::bfloat16) {
    throw Error("keys", "bfloat16 where rows lie one after another", std::string(name_of(pass.keys.format)));
  }
  const std::int64_t tiles = pass.lists.tiles.dim(0);
  const std::int64_t capacity = pass.lists.keys.dim(1);
  pass.lists.keys.expect("lists.keys", {tiles, -1});
  pass.lists.masks.expect("lists.masks", {tiles, capacity / kKeyBlock, group_of(pass.heads)});
  constexpr std::int64_t kMostTiles = std::numeric_limits<std::int32_t>::max() / 4;
  if (tiles > kMostTiles) {
    throw Error("lists.tiles", "at most " + std::to_string(kMostTiles), std::to_string(tiles));
  }
}

}  // namespace

std::vector<std::string> unmet_requirements(const Geometry& g) {
  std::vector<std::string> unmet;
  if (g.kv_lora_rank != kRank) {
    unmet.push_back("its kernel is compiled for a kv_lora_rank of 512, not " + std::to_string(g.kv_lora_rank));
  }
  if (g.qk_rope_head_dim != 0 && g.qk_rope_head_dim != kRope) {
    unmet.push_back("its kernel is compiled for a qk_rope_head_dim of 0 or 64, not " +
                    std::to_string(g.qk_rope_head_dim));
  }
  constexpr std::int64_t kMostHeads = 2 * kTileRows;
  if (g.num_heads > kMostHeads) {
    unmet.push_back("its kernel takes up to 128 heads, not " + std::to_string(g.num_heads));
  }
  return unmet;
}

KeyRows rows_in_pages(CacheFormat format, const CacheView& cache, const View<const std::int32_t>& block_table) {
  KeyRows rows;
  rows.data = cache.data;
  rows.row_stride = cache.row_stride;
  rows.format = format;
  rows.scale = cache.scale;
  rows.block_table = block_table.data();
  rows.table_row_stride = block_table.stride(0);
  rows.table_stride = block_table.stride(1);
  rows.table_width = block_table.dim(1);
  rows.num_pages = cache.num_pages;
  rows.page_size = cache.page_size;
  rows.page_stride = cache.page_stride;
  return rows;
}

void load() {
  for (const bool has_rope : {false, true}) {
    for (const CacheFormat format : {CacheFormat::bfloat16, CacheFormat::fp8, CacheFormat::fp8_ds_mla, kAnyRows}) {
      with_kernel(has_rope, format, [&]<int kQk, CacheFormat kFormat>() { load_kernel<kQk, kFormat>(); });
    }
  }
}

void launch(const Pass& pass, int multiprocessors, Stream stream) {
  validate(pass);
  const Params params = params_of(pass);
  if (params.num_tiles == 0) {
    return;
  }
  if (!pass.counter_is_clear) {
    check(cudaMemsetAsync(pass.counter, 0, sizeof(std::int32_t), device::cuda::native(stream)), "cudaMemsetAsync");
  }
  const auto blocks = static_cast<unsigned>(std::min(multiprocessors, params.num_tiles * params.parts));
  with_kernel(pass.has_rope, reader_of(pass), [&]<int kQk, CacheFormat kFormat>() {
    device::cuda::launch("top-k MQA", mqa_kernel<kQk, kFormat>, blocks, kThreads, sizeof(SharedStorage<kQk>), stream,
                         params);
  });
}

}  // namespace headrace::attention::mqa::sm90
