// SPDX-License-Identifier: Apache-2.0
#include "device/bf16_products.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define HEADRACE_AVX512_BF16 1
#include <immintrin.h>
#else
#define HEADRACE_AVX512_BF16 0
#endif

namespace headrace::device {

void pack_pairs(std::int64_t K, std::int64_t N, const bfloat16* rows, std::int64_t stride, bfloat16* out) {
  for (std::int64_t k = 0; k < K; k += 2) {
    const bfloat16* even = rows + k * stride;
    bfloat16* pair = out + k * N;
    if (k + 1 == K) {
      for (std::int64_t n = 0; n < N; ++n) {
        pair[2 * n] = even[n];
        pair[2 * n + 1] = bfloat16();
      }
      return;
    }
    const bfloat16* odd = even + stride;
    for (std::int64_t n = 0; n < N; ++n) {
      pair[2 * n] = even[n];
      pair[2 * n + 1] = odd[n];
    }
  }
}

void pack_pairs_transposed(std::int64_t K, std::int64_t N, const bfloat16* rows, std::int64_t stride,
                           std::int64_t columns, bfloat16* out) {
  // A pair of neighbouring k moves as one 32-bit unit; blocks of 16 x 16 units keep reads and writes within few lines.
  constexpr std::int64_t kBlock = 16;
  const std::int64_t pairs = K / 2;
  for (std::int64_t first = 0; first < pairs; first += kBlock) {
    const std::int64_t last = std::min(pairs, first + kBlock);
    for (std::int64_t n = 0; n < N; ++n) {
      for (std::int64_t p = first; p < last; ++p) {
        std::memcpy(out + 2 * (p * columns + n), rows + n * stride + 2 * p, 2 * sizeof(bfloat16));
      }
    }
  }
  if (K % 2 != 0) {
    for (std::int64_t n = 0; n < N; ++n) {
      out[2 * (pairs * columns + n)] = rows[n * stride + K - 1];
      out[2 * (pairs * columns + n) + 1] = bfloat16();
    }
  }
}

void round_to_bf16(std::int64_t n, const float* values, bfloat16* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = bfloat16(values[i]);
  }
}

#if HEADRACE_AVX512_BF16

namespace {

#define HEADRACE_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

// Register tile: 6 rows x 4 vectors of sums, 4 vectors of b and one pair of a broadcast: 29 of 32 registers.
constexpr std::int64_t kRows = 6;
constexpr std::int64_t kVectors = 4;
constexpr std::int64_t kLanes = 16;
constexpr __mmask16 kAllLanes = 0xffff;

/// A corner of c of Rows x Vectors vectors, of which the last has only the lanes in `last`.
template <std::int64_t Rows, std::int64_t Vectors>
HEADRACE_TARGET inline void corner(std::int64_t pairs, const bfloat16* a, std::int64_t lda, const bfloat16* b,
                                   std::int64_t ldb, float* c, std::int64_t ldc, __mmask16 last) {
  __m512 sum[Rows][Vectors];
// Unrolled by order: left to itself the compiler keeps the sums in memory.
#pragma GCC unroll 8
  for (std::int64_t m = 0; m < Rows; ++m) {
#pragma GCC unroll 8
    for (std::int64_t n = 0; n < Vectors; ++n) {
      sum[m][n] = _mm512_maskz_loadu_ps(n == Vectors - 1 ? last : kAllLanes, c + m * ldc + n * kLanes);
    }
  }
  for (std::int64_t k = 0; k < pairs; ++k) {
    __m512i column[Vectors];
#pragma GCC unroll 8
    for (std::int64_t n = 0; n < Vectors; ++n) {
      column[n] = _mm512_maskz_loadu_epi32(n == Vectors - 1 ? last : kAllLanes, b + 2 * (k * ldb + n * kLanes));
    }
#pragma GCC unroll 8
    for (std::int64_t m = 0; m < Rows; ++m) {
      int pair = 0;
      std::memcpy(&pair, a + m * lda + 2 * k, sizeof pair);
      const __m512i row = _mm512_set1_epi32(pair);
#pragma GCC unroll 8
      for (std::int64_t n = 0; n < Vectors; ++n) {
        sum[m][n] = _mm512_dpbf16_ps(sum[m][n], reinterpret_cast<__m512bh>(row), reinterpret_cast<__m512bh>(column[n]));
      }
    }
  }
#pragma GCC unroll 8
  for (std::int64_t m = 0; m < Rows; ++m) {
#pragma GCC unroll 8
    for (std::int64_t n = 0; n < Vectors; ++n) {
      _mm512_mask_storeu_ps(c + m * ldc + n * kLanes, n == Vectors - 1 ? last : kAllLanes, sum[m][n]);
    }
  }
}

template <std::int64_t Rows>
HEADRACE_TARGET void rows_of(std::int64_t N, std::int64_t pairs, const bfloat16* a, std::int64_t lda, const bfloat16* b,
                             std::int64_t ldb, float* c, std::int64_t ldc) {
  std::int64_t n = 0;
  for (; n + kVectors * kLanes <= N; n += kVectors * kLanes) {
    corner<Rows, kVectors>(pairs, a, lda, b + 2 * n, ldb, c + n, ldc, kAllLanes);
  }
  for (; n < N; n += kLanes) {
    const std::int64_t rest = std::min(kLanes, N - n);
    corner<Rows, 1>(pairs, a, lda, b + 2 * n, ldb, c + n, ldc, static_cast<__mmask16>((1U << rest) - 1U));
  }
}

}  // namespace

bool has_bf16_products() noexcept {
  static const bool has = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                          __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
  return has;
}

void bf16_products_add(std::int64_t M, std::int64_t N, std::int64_t K, const bfloat16* a, std::int64_t lda,
                       const bfloat16* b, std::int64_t ldb, float* c, std::int64_t ldc) {
  const std::int64_t pairs = K / 2;
  for (std::int64_t m = 0; m < M; m += kRows) {
    const bfloat16* a_rows = a + m * lda;
    float* c_rows = c + m * ldc;
    switch (std::min(kRows, M - m)) {
      case 1:
        rows_of<1>(N, pairs, a_rows, lda, b, ldb, c_rows, ldc);
        break;
      case 2:
        rows_of<2>(N, pairs, a_rows, lda, b, ldb, c_rows, ldc);
        break;
      case 3:
        rows_of<3>(N, pairs, a_rows, lda, b, ldb, c_rows, ldc);
        break;
      case 4:
        rows_of<4>(N, pairs, a_rows, lda, b, ldb, c_rows, ldc);
        break;
      case 5:
        rows_of<5>(N, pairs, a_rows, lda, b, ldb, c_rows, ldc);
        break;
      default:
        rows_of<kRows>(N, pairs, a_rows, lda, b, ldb, c_rows, ldc);
        break;
    }
  }
}

#else

bool has_bf16_products() noexcept { return false; }

void bf16_products_add(std::int64_t, std::int64_t, std::int64_t, const bfloat16*, std::int64_t, const bfloat16*,
                       std::int64_t, float*, std::int64_t) {}

#endif

}  // namespace headrace::device
