// SPDX-License-Identifier: Apache-2.0
//
// A block of 256 threads makes 64 x 64 elements of c, a thread 4 x 4 of them: rows and columns 16 apart, so that
// neighbouring threads read neighbouring columns. The operands go through shared memory, 16 values of k at a time, as
// float32. Floor: 2 * rows * columns * inner FLOPs at the rate of float32 outside the tensor cores.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <string>

#include "device/cuda/launch.cuh"
#include "device/cuda/plain_product.h"
#include "headrace/error.h"

namespace headrace::device::cuda {
namespace {

constexpr int kTile = 64;
constexpr int kStep = 16;
constexpr int kAThread = 4;
constexpr int kAcross = kTile / kAThread;
constexpr int kThreads = kAcross * kAcross;

/// A tile of an operand in shared memory; the pitch keeps what a warp writes in different banks.
using Operand = float[kStep][kTile + 1];

/// Elements (first + i, k + j) of a matrix become to[j][i]; zeros outside [end, inner).
__device__ void bring(const PlainMatrix& m, std::int64_t first, std::int64_t end, std::int64_t k, std::int64_t inner,
                      std::int64_t along, std::int64_t across, Operand& to) {
  const auto* matrix = static_cast<const __nv_bfloat16*>(m.data) + blockIdx.y * m.batch;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kStep; i += kThreads) {
    const std::int64_t line = first + i / kStep;
    const std::int64_t at = k + i % kStep;
    to[i % kStep][i / kStep] = line < end && at < inner ? __bfloat162float(matrix[line * across + at * along]) : 0.0F;
  }
}

__device__ inline void store(float value, float* to) { *to = value; }
__device__ inline void store(float value, __nv_bfloat16* to) { *to = __float2bfloat16_rn(value); }

template <class Out>
__global__ void __launch_bounds__(kThreads) plain_product_kernel(const PlainProduct p) {
  __shared__ Operand left;
  __shared__ Operand right;
  const std::int64_t tiles_across = (p.columns + kTile - 1) / kTile;
  const std::int64_t first_row = blockIdx.x / tiles_across * kTile;
  const std::int64_t first_column = blockIdx.x % tiles_across * kTile;
  const int row = static_cast<int>(threadIdx.x) / kAcross;
  const int column = static_cast<int>(threadIdx.x) % kAcross;
  float sums[kAThread][kAThread] = {};
  for (std::int64_t k = 0; k < p.inner; k += kStep) {
    bring(p.a, first_row, p.rows, k, p.inner, p.a.column, p.a.row, left);
    bring(p.b, first_column, p.columns, k, p.inner, p.b.row, p.b.column, right);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
#pragma unroll
      for (int r = 0; r < kAThread; ++r) {
#pragma unroll
        for (int c = 0; c < kAThread; ++c) {
          sums[r][c] += left[j][row + r * kAcross] * right[j][column + c * kAcross];
        }
      }
    }
    __syncthreads();
  }
  auto* matrix = static_cast<Out*>(const_cast<void*>(p.c.data)) + blockIdx.y * p.c.batch;
#pragma unroll
  for (int r = 0; r < kAThread; ++r) {
#pragma unroll
    for (int c = 0; c < kAThread; ++c) {
      const std::int64_t i = first_row + row + r * kAcross;
      const std::int64_t j = first_column + column + c * kAcross;
      if (i < p.rows && j < p.columns) {
        store(sums[r][c], matrix + i * p.c.row + j * p.c.column);
      }
    }
  }
}

}  // namespace

void run(const PlainProduct& product, Stream stream) {
  const auto tiles = [](std::int64_t length) { return (length + kTile - 1) / kTile; };
  const std::int64_t blocks = tiles(product.rows) * tiles(product.columns);
  constexpr std::int64_t kMostBlocks = 0x7fffffff;
  constexpr std::int64_t kMostMatrices = 65535;
  if (blocks > kMostBlocks || product.batch > kMostMatrices) {
    throw Error("product", "fewer than 2^31 tiles of 64 x 64, and 65,535 matrices at most",
                std::to_string(blocks) + " and " + std::to_string(product.batch));
  }
  if (blocks == 0 || product.batch == 0) {
    return;
  }
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(product.batch));
  const auto kernel = product.out == DType::float32 ? plain_product_kernel<float> : plain_product_kernel<__nv_bfloat16>;
  launch("plain product", kernel, grid, kThreads, 0, stream, product);
}

void load_plain_product() {
  load(plain_product_kernel<float>);
  load(plain_product_kernel<__nv_bfloat16>);
}

}  // namespace headrace::device::cuda
