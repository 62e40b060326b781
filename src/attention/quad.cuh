// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

/// What the four threads of a quad, which hold a row of a product's accumulators together, do with it.
namespace headrace::attention {

/// 2^x by the special function unit: at most 2 ulp off, and 0 for what would be denormal.
__device__ inline float power_of_two(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

/// What a row's weights are relative to, once a score of `high` has come: the maximum before stands while weights stay
/// below 2^8. They lose nothing by that, and what has been accumulated need not be rescaled.
__device__ inline float next_maximum(float before, float high, float scale_log2) {
  constexpr float kTolerated = 8.0F;
  return (high - before) * scale_log2 > kTolerated ? high : before;
}

/// Whether no row of the warp has a maximum that was raised, so that nothing is to be rescaled.
/// @param factor  of the thread's two rows
__device__ inline bool maxima_stand(const float (&factor)[2]) {
  return __all_sync(~0U, factor[0] == 1.0F && factor[1] == 1.0F) != 0;
}

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 2));
}

__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffU, x, 1);
  return x + __shfl_xor_sync(0xffffffffU, x, 2);
}

/// Exchanges 4 x 4 values among the four threads of a quad: afterwards x[i] is what thread i had in x[this thread].
__device__ inline void transpose_quad(std::uint32_t (&x)[4], int lane) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & step) == 0) {
        const std::uint32_t sent = upper ? x[i] : x[i + step];
        const std::uint32_t got = __shfl_xor_sync(0xffffffffU, sent, step);
        (upper ? x[i] : x[i + step]) = got;
      }
    }
  }
}

/// Two values as bfloat16, the first one in the lower half.
__device__ inline std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

}  // namespace headrace::attention
