// SPDX-License-Identifier: Apache-2.0
//
// Flash attention for sm_90a: attention of tiles of 128 query rows of one head to the keys of one request.
//
// A block of 384 threads, one a multiprocessor, takes tiles from a queue until none is left:
//   warp group 0      one thread feeds the copy engine: query tiles, K and V tiles, the descriptions of query tiles
//   warp groups 1, 2  64 query rows each: S = Q K^T (A and B from shared memory), softmax, O += P V (P from registers)
// A warp group keeps the product of one key tile in flight while it works on the softmax of the tile before, and the
// two warp groups take turns at the tensor cores, so that one group's softmax runs beside the other's products.
// Keys are visited from the diagonal down. The order of key tiles depends on positions alone.
//
// widths qk/v   key tile   stages   shared memory: Q       K          V          accumulator registers (O + S + P)
//   256/256        80         2               64 KiB    2 x 40     2 x 40 KiB     128 + 40 + 20
//   192/128       128         2               48 KiB    2 x 48     2 x 32 KiB      64 + 64 + 32
//   128/128       128         2               32 KiB    2 x 32     2 x 32 KiB      64 + 64 + 32
//
// K is given in column blocks of 64, each from its own tensor: K_nope from the up-projection and the rope key, which
// all heads share, from where it lies. Nothing is concatenated.
//
// Floor: rows * keys / 2 * 2 (qk + v) FLOPs a head at the card's matrix rate; K and V of a head are read from device
// memory once where they fit the L2 cache, for which heads are taken in groups.
//
// Keys past a request's end may belong to another request and hold anything: their scores are replaced, not added to,
// and their V rows are zeroed in shared memory, for 0 * NaN is NaN.

#include <cuda.h>
#include <cuda_runtime.h>
#include <cutlass/arch/reg_reconfig.h>

#include <algorithm>
#include <string>

#include "attention/mha/sm90.h"
#include "attention/mha/sm90_attend.cuh"
#include "attention/mha/sm90_copy.cuh"
#include "attention/mha/sm90_tile.cuh"
#include "core/layout_text.h"
#include "device/cuda/check.cuh"
#include "device/cuda/launch.cuh"
#include "headrace/error.h"

namespace headrace::attention::mha::sm90 {
namespace {

using device::cuda::check;

/// Registers of a thread. All that the block has from its launch (168 a thread) go round, and no more: a warp group
/// that asks for more than the others give back waits for ever.
constexpr int kProducerRegisters = 24;
constexpr int kConsumerRegisters = 240;
static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= (1 + kConsumers) * 168);

template <class C>
__global__ void __launch_bounds__(kThreads, 1) mha_kernel(const __grid_constant__ Params p) {
  auto& smem = *device::cuda::dynamic_shared<SharedStorage<C>>();
  const int group = static_cast<int>(threadIdx.x) / kWarpGroup;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kConsumers; ++i) {
      Barrier::init(&smem.full_q[i], 1);
      Barrier::init(&smem.empty_q[i], 4);
    }
    for (int i = 0; i < C::kStages; ++i) {
      Barrier::init(&smem.full_k[i], 1);
      Barrier::init(&smem.full_v[i], 1);
      Barrier::init(&smem.empty_k[i], kConsumers * 4);
      Barrier::init(&smem.empty_v[i], kConsumers * 4);
    }
    for (int i = 0; i < 2; ++i) {
      Barrier::init(&smem.full_work[i], 1);
      Barrier::init(&smem.empty_work[i], kConsumers * 4);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  if (group == 0) {
    cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
    if (threadIdx.x == 0) {
      produce<C>(p, smem);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
    consume<C>(p, smem, group - 1);
  }
}

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, found at run time: the library links no driver.
Encode encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    throw UnsupportedError("cuda", "a driver with cuTensorMapEncodeTiled", "none");
  }
  return reinterpret_cast<Encode>(function);
}

/// Found once.
Encode known_encoder() {
  static const Encode encode = encoder();
  return encode;
}

/// Boxes of 64 columns of one head and `box_rows` rows, swizzled by 128 bytes.
CUtensorMap tensor_map(const char* name, const HeadMatrix& m, std::int64_t columns, std::int64_t heads,
                       std::int64_t box_rows) {
  constexpr std::int64_t kAlign = 16;
  const bool shared = m.head_stride == 0;
  if (reinterpret_cast<std::uintptr_t>(m.data) % kAlign != 0 || m.row_stride * 2 % kAlign != 0 ||
      m.head_stride * 2 % kAlign != 0) {
    throw Error(name, "an address and strides divisible by 16 bytes",
                layout_text(m.data, kAlign, {m.row_stride * 2, m.head_stride * 2}));
  }
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(shared ? 1 : heads),
                               static_cast<cuuint64_t>(m.rows)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>((shared ? m.row_stride : m.head_stride) * 2),
                                 static_cast<cuuint64_t>(m.row_stride * 2)};
  const cuuint32_t box[3] = {kColumnBlock, 1, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult status =
      known_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(m.data), sizes, strides, box, steps,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw DeviceError(name, "a tensor the copy engine can read",
                      "driver error " + std::to_string(static_cast<int>(status)));
  }
  return map;
}

/// Groups of heads whose keys and values share the L2 cache: with more heads at once, every query tile would read them
/// from device memory. The last group takes what is left, and so many heads that every multiprocessor has some tiles of
/// it: with one, those that got its longest tiles would work on alone.
void group_heads(const Pass& pass, int multiprocessors, Params& p) {
  constexpr std::int64_t kCacheBytes = std::int64_t{32} << 20;
  constexpr std::int64_t kLastTiles = 2;  // of a multiprocessor
  const std::int64_t head_bytes = pass.value.rows * (pass.geometry.qk_head_dim() + pass.geometry.v_head_dim) * 2;
  const std::int64_t heads = pass.geometry.num_heads;
  const std::int64_t group = std::clamp<std::int64_t>(kCacheBytes / std::max<std::int64_t>(head_bytes, 1), 1, heads);
  const std::int64_t last_heads = (kLastTiles * multiprocessors + pass.num_tiles - 1) / pass.num_tiles;
  const std::int64_t whole = std::min(heads / group - 1, (heads - std::min(last_heads, heads)) / group);
  p.head_group = static_cast<std::int32_t>(group);
  p.last_group = static_cast<std::int32_t>(whole);
}

/// Lets a block of the kernel have the shared memory it needs, which also loads its code.
template <class C>
void load_kernel() {
  static_assert(sizeof(SharedStorage<C>) <= 232448, "more shared memory than a block of sm_90 has");
  device::cuda::allow_shared_memory(mha_kernel<C>, sizeof(SharedStorage<C>));
}

/// Calls `use` with the configuration for a geometry.
template <class Use>
void with_kernel(const Geometry& g, bool masked, const Use& use) {
  if (g.qk_head_dim() == 256) {
    masked ? use(Config<256, 256, 80, true>{}) : use(Config<256, 256, 80, false>{});
  } else if (g.qk_head_dim() == 192) {
    masked ? use(Config<192, 128, 128, true>{}) : use(Config<192, 128, 128, false>{});
  } else {
    masked ? use(Config<128, 128, 128, true>{}) : use(Config<128, 128, 128, false>{});
  }
}

template <class C>
void launch_kernel(const Pass& pass, int multiprocessors, Stream stream) {
  const Geometry& g = pass.geometry;
  Params p{};
  p.query = tensor_map("q", pass.query, g.qk_head_dim(), g.num_heads, kRowsOfGroup);
  p.key_nope = tensor_map("key_nope", pass.key_nope, g.qk_nope_head_dim, g.num_heads, C::kKeys);
  p.key_rope =
      g.qk_rope_head_dim > 0 ? tensor_map("key_rope", pass.key_rope, g.qk_rope_head_dim, 1, C::kKeys) : p.key_nope;
  p.value = tensor_map("value", pass.value, g.v_head_dim, g.num_heads, C::kKeys);
  p.query_start = pass.query_start;
  p.seq_len = pass.seq_len;
  p.spans = pass.spans;
  p.tiles = pass.tiles;
  p.counter = pass.counter;
  p.mask = pass.mask;
  p.mask_rows = pass.mask_rows;
  p.earlier = pass.earlier;
  p.earlier_lse = pass.earlier_lse;
  p.to_slice = pass.to_slice;
  p.out = pass.out;
  p.out_row_stride = pass.out_row_stride;
  p.out_head_stride = pass.out_head_stride;
  p.lse = pass.lse;
  p.lse_row_stride = pass.lse_row_stride;
  p.sink = pass.sink;
  p.tokens = cache::as_length(pass.query.rows);
  p.num_tiles = static_cast<std::int32_t>(pass.num_tiles);
  p.heads = static_cast<std::int32_t>(g.num_heads);
  p.total = p.num_tiles * p.heads;
  group_heads(pass, multiprocessors, p);
  p.nope_blocks = static_cast<std::int32_t>(g.qk_nope_head_dim / kColumnBlock);
  p.scale_log2 = pass.scale * kLog2e;
  p.causal = pass.causal;
  p.out_float32 = pass.out_float32;
  if (!pass.counter_is_clear) {
    check(cudaMemsetAsync(pass.counter, 0, sizeof(std::int32_t), device::cuda::native(stream)), "cudaMemsetAsync");
  }
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(multiprocessors, p.total));
  device::cuda::launch("flash attention", mha_kernel<C>, blocks, kThreads, sizeof(SharedStorage<C>), stream, p);
}

}  // namespace

void load(const Geometry& geometry) {
  static_cast<void>(known_encoder());
  for (const bool masked : {false, true}) {
    with_kernel(geometry, masked, [](auto config) { load_kernel<decltype(config)>(); });
  }
}

void launch(const Pass& pass, int multiprocessors, Stream stream) {
  for (const std::string& reason : unmet_requirements(pass.geometry)) {
    throw UnsupportedError("geometry", "one that the flash attention kernel serves", reason);
  }
  constexpr std::int64_t kAlign = 8;
  if (pass.out_row_stride % kAlign != 0 || pass.out_head_stride % kAlign != 0 ||
      reinterpret_cast<std::uintptr_t>(pass.out) % 16 != 0) {
    throw Error("out", "an address divisible by 16 bytes and strides by 8 elements",
                layout_text(pass.out, 16, {pass.out_row_stride, pass.out_head_stride}, "elements"));
  }
  if (pass.num_tiles == 0) {
    return;
  }
  with_kernel(pass.geometry, pass.mask != nullptr,
              [&](auto config) { launch_kernel<decltype(config)>(pass, multiprocessors, stream); });
}

}  // namespace headrace::attention::mha::sm90
