// SPDX-License-Identifier: Apache-2.0
//
// Norms, rope and the factor of the indexer's head weights. All of it is bound by memory: a step of T tokens reads and
// writes what the products around it wrote and read.
//
// norm    a warp a row, 8 values a lane in an access of 16 bytes. The row is read once for each statistic and once for
//         the result; it is at most a few KiB, so all but the first time comes from the L1 cache.
// rotate  a thread a pair; pairs of a token are next to each other in memory.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "device/cuda/check.cuh"
#include "device/cuda/launch.cuh"
#include "headrace/error.h"
#include "layer/cuda/row_steps.h"

namespace headrace::layer::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;  // of a block
constexpr int kThreads = kWarp * kWarps;
constexpr int kLaneValues = 8;
constexpr int kStepValues = kWarp * kLaneValues;
constexpr unsigned kAllLanes = 0xffffffffU;

/// Blocks for `count` items, `each` of them a block; at least one where there is an item.
unsigned blocks_of(std::int64_t count, std::int64_t each) { return static_cast<unsigned>((count + each - 1) / each); }

__device__ float sum_of_warp(float value) {
#pragma unroll
  for (int other = kWarp / 2; other > 0; other /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, other);
  }
  return value;
}

struct NormParams {
  __nv_bfloat16* x;
  std::int64_t row_stride;
  std::int64_t rows;
  int columns;
  const float* weight;
  const float* bias;
  float epsilon;
};

/// Eight neighbouring values of a row.
struct alignas(16) Eight {
  __nv_bfloat16 values[kLaneValues];
};

/// Calls visit(column, values) for this lane's values of a row.
template <class Visit>
__device__ void for_lane(__nv_bfloat16* row, int columns, const Visit& visit) {
  for (int i = static_cast<int>(threadIdx.x) % kWarp * kLaneValues; i < columns; i += kStepValues) {
    visit(i, *reinterpret_cast<Eight*>(row + i));
  }
}

template <bool kCentered>
__global__ void __launch_bounds__(kThreads) norm_kernel(const NormParams p) {
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (number >= p.rows) {
    return;
  }
  __nv_bfloat16* const row = p.x + number * p.row_stride;
  const float columns = static_cast<float>(p.columns);
  float center = 0.0F;
  if constexpr (kCentered) {
    float sum = 0.0F;
    for_lane(row, p.columns, [&](int, const Eight& eight) {
#pragma unroll
      for (int j = 0; j < kLaneValues; ++j) {
        sum += __bfloat162float(eight.values[j]);
      }
    });
    center = sum_of_warp(sum) / columns;
  }
  float squares = 0.0F;
  for_lane(row, p.columns, [&](int, const Eight& eight) {
#pragma unroll
    for (int j = 0; j < kLaneValues; ++j) {
      const float value = __bfloat162float(eight.values[j]) - center;
      squares += value * value;
    }
  });
  const float scale = 1.0F / sqrtf(sum_of_warp(squares) / columns + p.epsilon);
  for_lane(row, p.columns, [&](int first, Eight& memory) {
    Eight eight = memory;
#pragma unroll
    for (int j = 0; j < kLaneValues; ++j) {
      float value = (__bfloat162float(eight.values[j]) - center) * scale * p.weight[first + j];
      if constexpr (kCentered) {
        value += p.bias[first + j];
      }
      eight.values[j] = __float2bfloat16(value);
    }
    memory = eight;
  });
}

template <bool kCentered>
void launch_norm(View<bfloat16> x, View<const float> weight, const float* bias, double epsilon, Stream stream) {
  weight.expect("norm weight", {-1});
  x.expect("norm input", {-1, weight.dim(0)});
  const bool vectors = x.stride(1) == 1 && x.dim(1) % kLaneValues == 0 && x.stride(0) % kLaneValues == 0 &&
                       reinterpret_cast<std::uintptr_t>(x.data()) % sizeof(Eight) == 0;
  if (!vectors || weight.stride(0) != 1) {
    throw Error("norm input", "contiguous rows of a multiple of 8 values, at multiples of 16 bytes",
                std::to_string(x.dim(1)) + " values, strides of " + std::to_string(x.stride(0)) + " and " +
                    std::to_string(x.stride(1)));
  }
  if (x.dim(0) == 0) {
    return;
  }
  const NormParams params{.x = reinterpret_cast<__nv_bfloat16*>(x.data()),
                          .row_stride = x.stride(0),
                          .rows = x.dim(0),
                          .columns = static_cast<int>(x.dim(1)),
                          .weight = weight.data(),
                          .bias = bias,
                          .epsilon = static_cast<float>(epsilon)};
  const auto kernel = norm_kernel<kCentered>;
  device::cuda::launch("norm", kernel, blocks_of(params.rows, kWarps), kThreads, 0, stream, params);
}

struct TableParams {
  const std::int32_t* positions;
  std::int64_t position_stride;
  std::int64_t tokens;
  const double* inverse;
  int pairs;
  double factor;
  float2* table;
};

__global__ void __launch_bounds__(kThreads) table_kernel(const TableParams p) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= p.tokens * p.pairs) {
    return;
  }
  const double angle = static_cast<double>(p.positions[at / p.pairs * p.position_stride]) * p.inverse[at % p.pairs];
  double sine = 0.0;
  double cosine = 0.0;
  sincos(angle, &sine, &cosine);
  p.table[at] = make_float2(static_cast<float>(cosine * p.factor), static_cast<float>(sine * p.factor));
}

struct RotateParams {
  __nv_bfloat16* x;
  std::int64_t token_stride;
  std::int64_t head_stride;
  int heads;
  int pairs;
  int step;     // from a pair's first value to the next pair's
  int partner;  // from a pair's first value to its second
  int blocks_a_token;
  int threads;
  const float2* table;
};

__global__ void __launch_bounds__(kThreads) rotate_kernel(const RotateParams p) {
  const std::int64_t token = blockIdx.x / static_cast<unsigned>(p.blocks_a_token);
  const int block = static_cast<int>(blockIdx.x % static_cast<unsigned>(p.blocks_a_token));
  const int at = block * p.threads + static_cast<int>(threadIdx.x);
  if (at >= p.heads * p.pairs) {
    return;
  }
  const int head = at / p.pairs;
  const int pair = at % p.pairs;
  __nv_bfloat16* const first = p.x + token * p.token_stride + head * p.head_stride + pair * p.step;
  const float2 turn = p.table[token * p.pairs + pair];
  const float a = __bfloat162float(first[0]);
  const float b = __bfloat162float(first[p.partner]);
  first[0] = __float2bfloat16(a * turn.x - b * turn.y);
  first[p.partner] = __float2bfloat16(b * turn.x + a * turn.y);
}

struct ScaleParams {
  const float* product;
  std::int64_t product_stride;
  float* weight;
  std::int64_t weight_stride;
  std::int64_t tokens;
  int heads;
  float factor;
};

__global__ void __launch_bounds__(kThreads) scale_kernel(const ScaleParams p) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= p.tokens * p.heads) {
    return;
  }
  const std::int64_t token = at / p.heads;
  const std::int64_t head = at % p.heads;
  p.weight[token * p.weight_stride + head] = p.product[token * p.product_stride + head] * p.factor;
}

}  // namespace

void load_row_steps() {
  cudaFuncAttributes attributes{};
  device::cuda::check(cudaFuncGetAttributes(&attributes, norm_kernel<false>), "RMS norm");
  device::cuda::check(cudaFuncGetAttributes(&attributes, norm_kernel<true>), "layer norm");
  device::cuda::check(cudaFuncGetAttributes(&attributes, table_kernel), "rope table");
  device::cuda::check(cudaFuncGetAttributes(&attributes, rotate_kernel), "rotate");
  device::cuda::check(cudaFuncGetAttributes(&attributes, scale_kernel), "head weights");
}

void rms_norm(View<bfloat16> x, View<const float> weight, double epsilon, Stream stream) {
  launch_norm<false>(x, weight, nullptr, epsilon, stream);
}

void layer_norm(View<bfloat16> x, View<const float> weight, View<const float> bias, double epsilon, Stream stream) {
  bias.expect("norm bias", {weight.dim(0)});
  launch_norm<true>(x, weight, bias.data(), epsilon, stream);
}

void rope_table(View<const std::int32_t> positions, View<const double> inverse, double factor, View<float> table,
                Stream stream) {
  table.expect("rope table", {positions.dim(0), inverse.dim(0), 2});
  if (positions.dim(0) == 0) {
    return;
  }
  const TableParams params{.positions = positions.data(),
                           .position_stride = positions.stride(0),
                           .tokens = positions.dim(0),
                           .inverse = inverse.data(),
                           .pairs = static_cast<int>(inverse.dim(0)),
                           .factor = factor,
                           .table = reinterpret_cast<float2*>(table.data())};
  device::cuda::launch("rope table", table_kernel, blocks_of(params.tokens * params.pairs, kThreads), kThreads, 0,
                       stream, params);
}

void rotate(View<bfloat16> x, View<const float> table, bool interleave, Stream stream) {
  table.expect("rope table", {-1, -1, 2});
  const std::int64_t pairs = table.dim(1);
  x.expect("rope vectors", {table.dim(0), -1, 2 * pairs});
  if (x.stride(2) != 1) {
    throw Error("rope vectors", "a contiguous last dimension", "stride " + std::to_string(x.stride(2)));
  }
  if (x.size() == 0) {
    return;
  }
  const std::int64_t pairs_a_token = x.dim(1) * pairs;
  const auto threads = static_cast<int>(std::min<std::int64_t>(kThreads, (pairs_a_token + kWarp - 1) / kWarp * kWarp));
  const std::int64_t blocks = (pairs_a_token + threads - 1) / threads;
  const RotateParams params{.x = reinterpret_cast<__nv_bfloat16*>(x.data()),
                            .token_stride = x.stride(0),
                            .head_stride = x.stride(1),
                            .heads = static_cast<int>(x.dim(1)),
                            .pairs = static_cast<int>(pairs),
                            .step = interleave ? 2 : 1,
                            .partner = interleave ? 1 : static_cast<int>(pairs),
                            .blocks_a_token = static_cast<int>(blocks),
                            .threads = threads,
                            .table = reinterpret_cast<const float2*>(table.data())};
  device::cuda::launch("rotate", rotate_kernel, static_cast<unsigned>(x.dim(0) * blocks), threads, 0, stream, params);
}

void scale_head_weights(View<const float> product, double factor, View<float> weight, Stream stream) {
  weight.expect("head weights", {product.dim(0), -1});
  if (product.dim(1) < weight.dim(1) || product.stride(1) != 1 || weight.stride(1) != 1) {
    throw Error("head weights", "contiguous rows, no longer than the product's " + std::to_string(product.dim(1)),
                std::to_string(weight.dim(1)));
  }
  if (weight.size() == 0) {
    return;
  }
  const ScaleParams params{.product = product.data(),
                           .product_stride = product.stride(0),
                           .weight = weight.data(),
                           .weight_stride = weight.stride(0),
                           .tokens = weight.dim(0),
                           .heads = static_cast<int>(weight.dim(1)),
                           .factor = static_cast<float>(factor)};
  device::cuda::launch("head weights", scale_kernel, blocks_of(params.tokens * params.heads, kThreads), kThreads, 0,
                       stream, params);
}

}  // namespace headrace::layer::cuda
