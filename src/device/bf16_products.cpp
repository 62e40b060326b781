// SPDX-License-Identifier: Apache-2.0
#include "device/bf16_products.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define HEADRACE_AVX512_BF16 1
#include <immintrin.h>
#ifndef __clang__
// GCC 12 warns of its own intrinsics' deliberately undefined operands.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#else
#define HEADRACE_AVX512_BF16 0
#endif

namespace headrace::device {

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

/// Transposes a 16 x 16 matrix of 32-bit units held in 16 vectors.
HEADRACE_TARGET inline void transpose(__m512i (&rows)[16]) {
  __m512i mixed[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    mixed[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
    mixed[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
  }
  // rows[4 g + c]: of each 128-bit lane l, column 4 l + c of rows 4 g to 4 g + 3.
#pragma GCC unroll 8
  for (int g = 0; g < 4; ++g) {
    rows[4 * g] = _mm512_unpacklo_epi64(mixed[4 * g], mixed[4 * g + 2]);
    rows[4 * g + 1] = _mm512_unpackhi_epi64(mixed[4 * g], mixed[4 * g + 2]);
    rows[4 * g + 2] = _mm512_unpacklo_epi64(mixed[4 * g + 1], mixed[4 * g + 3]);
    rows[4 * g + 3] = _mm512_unpackhi_epi64(mixed[4 * g + 1], mixed[4 * g + 3]);
  }
#pragma GCC unroll 8
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0x88);   // lanes 0, 2 of groups 0, 1
    const __m512i high01 = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0xdd);  // lanes 1, 3
    const __m512i low23 = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0x88);
    const __m512i high23 = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0xdd);
    mixed[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    mixed[8 + c] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    mixed[4 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    mixed[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    rows[i] = mixed[i];
  }
}

/// Units [pair, pair + pairs) of rows [row, row + rows), both at most 16, to out[pair][row].
HEADRACE_TARGET void transpose_block(std::int64_t rows, std::int64_t pairs, const bfloat16* in, std::int64_t stride,
                                     std::int64_t columns, bfloat16* out) {
  const auto some_pairs = static_cast<__mmask16>((1U << pairs) - 1U);
  const auto some_rows = static_cast<__mmask16>((1U << rows) - 1U);
  __m512i block[16];
#pragma GCC unroll 16
  for (std::int64_t r = 0; r < 16; ++r) {
    block[r] = r < rows ? _mm512_maskz_loadu_epi32(some_pairs, in + r * stride) : _mm512_setzero_si512();
  }
  transpose(block);
#pragma GCC unroll 16
  for (std::int64_t p = 0; p < 16; ++p) {
    if (p < pairs) {
      _mm512_mask_storeu_epi32(out + 2 * p * columns, some_rows, block[p]);
    }
  }
}

/// For tests and bug reports: the portable arithmetic on a machine that has better.
bool disabled_by_environment() noexcept {
  const char* value = std::getenv("HEADRACE_DISABLE_AVX512_BF16");  // NOLINT(concurrency-mt-unsafe)
  return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

}  // namespace

bool has_bf16_products() noexcept {
  static const bool has = !disabled_by_environment() && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bf16");
  return has;
}

HEADRACE_TARGET void pack_pairs(std::int64_t K, std::int64_t N, const bfloat16* rows, std::int64_t stride,
                                bfloat16* out) {
  for (std::int64_t k = 0; k < K; k += 2) {
    const bfloat16* even = rows + k * stride;
    bfloat16* pair = out + k * N;
    for (std::int64_t n = 0; n < N; n += kLanes) {
      const auto lanes = static_cast<__mmask16>((1U << std::min(kLanes, N - n)) - 1U);
      // Each 16-bit value in the low half of a 32-bit lane; the odd row's is moved to the high half.
      const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, even + n));
      const __m512i high = k + 1 < K ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, even + stride + n))
                                     : _mm512_setzero_si512();
      _mm512_mask_storeu_epi32(pair + 2 * n, lanes, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
}

HEADRACE_TARGET void pack_pairs_transposed(std::int64_t K, std::int64_t N, const bfloat16* rows, std::int64_t stride,
                                           std::int64_t columns, bfloat16* out) {
  // A pair of neighbouring k moves as one 32-bit unit.
  const std::int64_t pairs = K / 2;
  for (std::int64_t n = 0; n < N; n += kLanes) {
    for (std::int64_t p = 0; p < pairs; p += kLanes) {
      transpose_block(std::min(kLanes, N - n), std::min(kLanes, pairs - p), rows + n * stride + 2 * p, stride, columns,
                      out + 2 * (p * columns + n));
    }
  }
  for (std::int64_t n = 0; K % 2 != 0 && n < N; ++n) {
    out[2 * (pairs * columns + n)] = rows[n * stride + K - 1];
    out[2 * (pairs * columns + n) + 1] = bfloat16();
  }
}

HEADRACE_TARGET void round_to_bf16(std::int64_t n, const float* values, bfloat16* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = bfloat16(values[i]);
  }
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

// No caller comes here: PairTiles and matmul's PairArithmetic are used only where has_bf16_products().
bool has_bf16_products() noexcept { return false; }

void pack_pairs(std::int64_t, std::int64_t, const bfloat16*, std::int64_t, bfloat16*) {}

void pack_pairs_transposed(std::int64_t, std::int64_t, const bfloat16*, std::int64_t, std::int64_t, bfloat16*) {}

void round_to_bf16(std::int64_t, const float*, bfloat16*) {}

void bf16_products_add(std::int64_t, std::int64_t, std::int64_t, const bfloat16*, std::int64_t, const bfloat16*,
                       std::int64_t, float*, std::int64_t) {}

#endif

}  // namespace headrace::device
