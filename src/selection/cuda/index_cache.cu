// SPDX-License-Identifier: Apache-2.0
//
// Writing the indexer's key cache: a warp a token, in two kernels, for the tokens of a pool may come in one step.
//
// write rows   copies key and gate to the token's slot, 16 bytes a lane where addresses allow it.
// pool         for the tokens that complete a pool: a lane takes every 32nd channel and reads the pool's rows twice,
// for
//              the largest logit and for the sums. A pool reads its own rows only and writes the key of the last, which
//              no other pool reads: pools are independent. The other warps return at once.
// No shared memory. Bytes a token, D 128: 256 read and written, for k-pool 512 each, and 512 read again by the pools.
// Floor of 131,072 tokens at 4.3 TB/s: 16 us, with pools 47 us.

#include <algorithm>
#include <cstddef>
#include <string>

#include "device/cuda/check.cuh"
#include "device/cuda/current.h"
#include "device/cuda/device.h"
#include "device/cuda/launch.cuh"
#include "headrace/cuda_indexer.h"
#include "headrace/error.h"
#include "selection/cuda/index_cache.h"
#include "selection/cuda/step.cuh"
#include "selection/index_cache.h"

namespace headrace::selection::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;  // of a block
constexpr int kVector = 8;

struct AppendParams {
  Pages<std::byte> cache;
  DeviceRequests requests;
  const __nv_bfloat16* key;
  const __nv_bfloat16* gate;  // null: a lightning indexer's rows
  const float* bias;
  const std::int64_t* slots;
  std::int64_t key_stride;
  std::int64_t gate_stride;
  std::int64_t bias_row_stride;
  std::int64_t bias_stride;
  std::int64_t slot_stride;
  std::int64_t tokens;
  std::int64_t dim;
  std::int64_t pool;
  bool vector;  // whether rows can be copied eight values at a time
};

__device__ std::int64_t token_of_warp() { return static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; }

__device__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

__device__ void copy_row(const AppendParams& p, const __nv_bfloat16* from, __nv_bfloat16* to) {
  if (p.vector) {
    for (std::int64_t i = lane() * kVector; i < p.dim; i += kWarp * kVector) {
      *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
    }
    return;
  }
  for (std::int64_t i = lane(); i < p.dim; i += kWarp) {
    to[i] = from[i];
  }
}

__global__ void __launch_bounds__(kWarps* kWarp) write_rows_kernel(const AppendParams p) {
  const std::int64_t token = token_of_warp();
  if (token >= p.tokens) {
    return;
  }
  auto* row = reinterpret_cast<__nv_bfloat16*>(p.cache.row_at(p.slots[token * p.slot_stride]));
  if (row == nullptr) {
    return;
  }
  copy_row(p, p.key + token * p.key_stride, row);
  if (p.gate != nullptr) {
    copy_row(p, p.gate + token * p.gate_stride, row + p.dim);
  }
}

/// The pool that a row completes.
struct CompletedPool {
  std::int64_t request;
  std::int64_t first_position;
  __nv_bfloat16* last;

  /// The row of the pool's token at an offset, or null.
  [[nodiscard]] __device__ const __nv_bfloat16* row(const AppendParams& p, std::int64_t offset) const {
    return offset == p.pool - 1
               ? last
               : reinterpret_cast<const __nv_bfloat16*>(p.cache.key_row(p.requests, request, first_position + offset));
  }
};

/// The key of a complete pool in one channel: the mean of its tokens' keys under softmax weights of gate + bias.
__device__ float pooled_key(const AppendParams& p, const CompletedPool& pool, std::int64_t channel) {
  const auto logit = [&](const __nv_bfloat16* row, std::int64_t offset) {
    return __bfloat162float(row[p.dim + channel]) + p.bias[offset * p.bias_row_stride + channel * p.bias_stride];
  };
  float largest = -INFINITY;
  for (std::int64_t o = 0; o < p.pool; ++o) {
    largest = fmaxf(largest, logit(pool.row(p, o), o));
  }
  float total = 0.0F;
  float weighted = 0.0F;
  for (std::int64_t o = 0; o < p.pool; ++o) {
    const __nv_bfloat16* row = pool.row(p, o);
    const float weight = expf(logit(row, o) - largest);
    total += weight;
    weighted += weight * __bfloat162float(row[channel]);
  }
  return weighted / total;
}

__global__ void __launch_bounds__(kWarps* kWarp) pool_kernel(const AppendParams p) {
  const std::int64_t token = token_of_warp();
  if (token >= p.tokens) {
    return;
  }
  const Row row = p.requests.find_row(token);
  if (row.request < 0 || (row.position + 1) % p.pool != 0) {
    return;
  }
  const CompletedPool pool{row.request, row.position + 1 - p.pool,
                           reinterpret_cast<__nv_bfloat16*>(p.cache.row_at(p.slots[token * p.slot_stride]))};
  for (std::int64_t o = 0; o < p.pool; ++o) {
    if (pool.row(p, o) == nullptr) {
      return;
    }
  }
  for (std::int64_t channel = lane(); channel < p.dim; channel += kWarp) {
    pool.last[channel] = __float2bfloat16_rn(pooled_key(p, pool, channel));
  }
}

[[nodiscard]] bool suits_vectors(const AppendParams& p, const MutableCacheView& cache) {
  constexpr std::int64_t kAlignment = sizeof(uint4);
  const auto divides = [](std::int64_t bytes) { return bytes % kAlignment == 0; };
  const auto address = [](const void* data) {
    return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(data));
  };
  constexpr std::int64_t kBytes = sizeof(__nv_bfloat16);
  return divides(p.dim * kBytes) && divides(address(cache.data)) && divides(cache.row_stride) &&
         divides(cache.page_stride) && divides(address(p.key)) && divides(p.key_stride * kBytes) &&
         divides(address(p.gate)) && divides(p.gate_stride * kBytes);
}

void expect_rows(const char* name, const ConstAnyView& rows, std::int64_t tokens, std::int64_t dim) {
  rows.expect(name, {tokens, dim});
  expect_dtype(name, DType::bfloat16, rows.dtype());
  if (dim > 1 && rows.strides()[1] != 1) {
    throw Error(name, "contiguous rows", "elements " + std::to_string(rows.strides()[1]) + " apart");
  }
}

}  // namespace

void load_append_index_keys() {
  cudaFuncAttributes attributes{};
  device::cuda::check(cudaFuncGetAttributes(&attributes, write_rows_kernel), "index key rows");
  device::cuda::check(cudaFuncGetAttributes(&attributes, pool_kernel), "index key pools");
}

}  // namespace headrace::selection::cuda

namespace headrace {

void append_index_keys(const IndexerGeometry& indexer, const MutableCacheView& cache, ConstAnyView key,
                       ConstAnyView gate, View<const float> offset_bias, const Requests& requests,
                       View<const std::int64_t> slot_mapping, const CudaDevice& device, Stream stream) {
  using namespace selection::cuda;
  selection::validate_index_cache(indexer, DType::bfloat16, cache);
  expect_rows("index key", key, -1, indexer.head_dim);
  const std::int64_t tokens = key.dim(0);
  if (indexer.kpool) {
    expect_rows("index gate", gate, tokens, indexer.head_dim);
    offset_bias.expect("offset_bias", {indexer.pool, indexer.head_dim});
  } else if (!gate.empty() || !offset_bias.empty()) {
    throw Error("index gate and offset_bias", "none for a lightning indexer", "a view");
  }
  slot_mapping.expect("slot_mapping", {tokens});
  if (tokens > INT32_MAX) {
    throw Error("index key", "fewer than 2^31 tokens", std::to_string(tokens));
  }
  requests.seq_len.expect("seq_len", {-1});
  requests.query_start.expect("query_start", {requests.seq_len.dim(0) + 1});
  requests.block_table.expect("block_table", {requests.seq_len.dim(0), -1});
  if (tokens == 0) {
    return;
  }
  const device::cuda::CurrentDevice current(device::cuda::served_ordinal(device));
  AppendParams params{
      .cache = Pages<std::byte>(cache),
      .requests = DeviceRequests(requests),
      .key = static_cast<const __nv_bfloat16*>(key.data()),
      .gate = indexer.kpool ? static_cast<const __nv_bfloat16*>(gate.data()) : nullptr,
      .bias = offset_bias.data(),
      .slots = slot_mapping.data(),
      .key_stride = key.strides()[0],
      .gate_stride = indexer.kpool ? gate.strides()[0] : 0,
      .bias_row_stride = indexer.kpool ? offset_bias.stride(0) : 0,
      .bias_stride = indexer.kpool ? offset_bias.stride(1) : 0,
      .slot_stride = slot_mapping.stride(0),
      .tokens = tokens,
      .dim = indexer.head_dim,
      .pool = indexer.pool,
      .vector = false,
  };
  params.vector = suits_vectors(params, cache);
  const auto blocks = static_cast<unsigned>((tokens + kWarps - 1) / kWarps);
  device::cuda::launch("index key rows", write_rows_kernel, blocks, kWarps * kWarp, 0, stream, params);
  if (indexer.kpool) {
    device::cuda::launch("index key pools", pool_kernel, blocks, kWarps * kWarp, 0, stream, params);
  }
}

}  // namespace headrace
