// SPDX-License-Identifier: Apache-2.0
#include "device/tile_products.h"

#include <algorithm>

// The register tiles below are arrays of vectors, which scalable-vector targets do not allow; Arm runs NEON instead.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/tile_products.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headrace::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Register tiles: rows x columns of accumulators, plus one row of operands, within 32 registers (AVX-512, NEON) or 16.
// Better x86 targets have lower numbers, and all below AVX3 have 32 registers.
#if HWY_TARGET == HWY_NEON || HWY_TARGET <= HWY_AVX3
constexpr std::int64_t kDotRows = 4;
constexpr std::int64_t kDotColumns = 5;
constexpr std::int64_t kOuterRows = 6;
constexpr std::int64_t kOuterVectors = 4;
#else
constexpr std::int64_t kDotRows = 3;
constexpr std::int64_t kDotColumns = 3;
constexpr std::int64_t kOuterRows = 4;
constexpr std::int64_t kOuterVectors = 2;
#endif
static_assert(kOuterRows <= 6, "products_nn_add_target handles up to five left-over rows");

// The first n values, n less than a vector, and none of what lies beyond. Targets without masked loads and stores move
// them through a vector of their own: Highway's would touch whole vectors there, aligned ones even. Better x86 targets
// have lower numbers, and lower than every Arm one.
#if HWY_TARGET <= HWY_AVX2

V load_first(std::int64_t n, const float* values) {
  const D d;
  return hn::MaskedLoad(hn::FirstN(d, static_cast<std::size_t>(n)), d, values);
}

void store_first(std::int64_t n, V vector, float* values) {
  const D d;
  hn::BlendedStore(vector, hn::FirstN(d, static_cast<std::size_t>(n)), d, values);
}

#else

V load_first(std::int64_t n, const float* values) {
  const D d;
  HWY_ALIGN float whole[hn::MaxLanes(D())] = {};
  std::copy_n(values, n, whole);
  return hn::Load(d, whole);
}

void store_first(std::int64_t n, V vector, float* values) {
  const D d;
  HWY_ALIGN float whole[hn::MaxLanes(D())];
  hn::Store(vector, d, whole);
  std::copy_n(whole, n, values);
}

#endif

/// A Rows x Columns corner of c = a b^T: dot products along K, one vector of partial sums for each element.
template <std::int64_t Rows, std::int64_t Columns>
void dot_tile(std::int64_t K, const float* HWY_RESTRICT a, std::int64_t lda, const float* HWY_RESTRICT b,
              std::int64_t ldb, float* HWY_RESTRICT c, std::int64_t ldc, Update update) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V sum[Rows][Columns];
#pragma GCC unroll 8
  for (std::int64_t m = 0; m < Rows; ++m) {
#pragma GCC unroll 8
    for (std::int64_t n = 0; n < Columns; ++n) {
      sum[m][n] = hn::Zero(d);
    }
  }
  std::int64_t k = 0;
  for (; k + lanes <= K; k += lanes) {
    V column[Columns];
#pragma GCC unroll 8
    for (std::int64_t n = 0; n < Columns; ++n) {
      column[n] = hn::LoadU(d, b + n * ldb + k);
    }
#pragma GCC unroll 8
    for (std::int64_t m = 0; m < Rows; ++m) {
      const V row = hn::LoadU(d, a + m * lda + k);
#pragma GCC unroll 8
      for (std::int64_t n = 0; n < Columns; ++n) {
        sum[m][n] = hn::MulAdd(row, column[n], sum[m][n]);
      }
    }
  }
  if (k < K) {
#pragma GCC unroll 8
    for (std::int64_t m = 0; m < Rows; ++m) {
      const V row = load_first(K - k, a + m * lda + k);
#pragma GCC unroll 8
      for (std::int64_t n = 0; n < Columns; ++n) {
        sum[m][n] = hn::MulAdd(row, load_first(K - k, b + n * ldb + k), sum[m][n]);
      }
    }
  }
#pragma GCC unroll 8
  for (std::int64_t m = 0; m < Rows; ++m) {
#pragma GCC unroll 8
    for (std::int64_t n = 0; n < Columns; ++n) {
      const float value = hn::GetLane(hn::SumOfLanes(d, sum[m][n]));
      float& out = c[m * ldc + n];
      out = update == Update::add ? out + value : value;
    }
  }
}

template <std::int64_t Rows>
void dot_rows(std::int64_t N, std::int64_t K, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
              float* c, std::int64_t ldc, Update update) {
  std::int64_t n = 0;
  for (; n + kDotColumns <= N; n += kDotColumns) {
    dot_tile<Rows, kDotColumns>(K, a, lda, b + n * ldb, ldb, c + n, ldc, update);
  }
  for (; n < N; ++n) {
    dot_tile<Rows, 1>(K, a, lda, b + n * ldb, ldb, c + n, ldc, update);
  }
}

void products_nt_target(std::int64_t M, std::int64_t N, std::int64_t K, const float* a, std::int64_t lda,
                        const float* b, std::int64_t ldb, float* c, std::int64_t ldc, Update update) {
  std::int64_t m = 0;
  for (; m + kDotRows <= M; m += kDotRows) {
    dot_rows<kDotRows>(N, K, a + m * lda, lda, b, ldb, c + m * ldc, ldc, update);
  }
  for (; m < M; ++m) {
    dot_rows<1>(N, K, a + m * lda, lda, b, ldb, c + m * ldc, ldc, update);
  }
}

/// A corner of c += a b of Rows x (Vectors whole vectors): outer products along K.
template <std::int64_t Rows, std::int64_t Vectors>
void outer_tile(std::int64_t K, const float* HWY_RESTRICT a, std::int64_t lda, const float* HWY_RESTRICT b,
                std::int64_t ldb, float* HWY_RESTRICT c, std::int64_t ldc) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V sum[Rows][Vectors];
#pragma GCC unroll 8
  for (std::int64_t m = 0; m < Rows; ++m) {
#pragma GCC unroll 8
    for (std::int64_t n = 0; n < Vectors; ++n) {
      sum[m][n] = hn::LoadU(d, c + m * ldc + n * lanes);
    }
  }
  for (std::int64_t k = 0; k < K; ++k) {
    V row[Vectors];
#pragma GCC unroll 8
    for (std::int64_t n = 0; n < Vectors; ++n) {
      row[n] = hn::LoadU(d, b + k * ldb + n * lanes);
    }
#pragma GCC unroll 8
    for (std::int64_t m = 0; m < Rows; ++m) {
      const V factor = hn::Set(d, a[m * lda + k]);
#pragma GCC unroll 8
      for (std::int64_t n = 0; n < Vectors; ++n) {
        sum[m][n] = hn::MulAdd(factor, row[n], sum[m][n]);
      }
    }
  }
#pragma GCC unroll 8
  for (std::int64_t m = 0; m < Rows; ++m) {
#pragma GCC unroll 8
    for (std::int64_t n = 0; n < Vectors; ++n) {
      hn::StoreU(sum[m][n], d, c + m * ldc + n * lanes);
    }
  }
}

/// The columns that do not fill a vector, for one row.
void outer_rest(std::int64_t N, std::int64_t K, const float* a, const float* b, std::int64_t ldb, float* c) {
  const D d;
  V sum = load_first(N, c);
  for (std::int64_t k = 0; k < K; ++k) {
    sum = hn::MulAdd(hn::Set(d, a[k]), load_first(N, b + k * ldb), sum);
  }
  store_first(N, sum, c);
}

template <std::int64_t Rows>
void outer_rows(std::int64_t N, std::int64_t K, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                float* c, std::int64_t ldc) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(D()));
  std::int64_t n = 0;
  for (; n + kOuterVectors * lanes <= N; n += kOuterVectors * lanes) {
    outer_tile<Rows, kOuterVectors>(K, a, lda, b + n, ldb, c + n, ldc);
  }
  for (; n + lanes <= N; n += lanes) {
    outer_tile<Rows, 1>(K, a, lda, b + n, ldb, c + n, ldc);
  }
  for (std::int64_t m = 0; n < N && m < Rows; ++m) {
    outer_rest(N - n, K, a + m * lda, b + n, ldb, c + m * ldc + n);
  }
}

void products_nn_add_target(std::int64_t M, std::int64_t N, std::int64_t K, const float* a, std::int64_t lda,
                            const float* b, std::int64_t ldb, float* c, std::int64_t ldc) {
  std::int64_t m = 0;
  for (; m + kOuterRows <= M; m += kOuterRows) {
    outer_rows<kOuterRows>(N, K, a + m * lda, lda, b, ldb, c + m * ldc, ldc);
  }
  // The last rows as one tile, too: alone, a row would load b for itself.
  switch (M - m) {
    case 5:
      outer_rows<5>(N, K, a + m * lda, lda, b, ldb, c + m * ldc, ldc);
      break;
    case 4:
      outer_rows<4>(N, K, a + m * lda, lda, b, ldb, c + m * ldc, ldc);
      break;
    case 3:
      outer_rows<3>(N, K, a + m * lda, lda, b, ldb, c + m * ldc, ldc);
      break;
    case 2:
      outer_rows<2>(N, K, a + m * lda, lda, b, ldb, c + m * ldc, ldc);
      break;
    case 1:
      outer_rows<1>(N, K, a + m * lda, lda, b, ldb, c + m * ldc, ldc);
      break;
    default:
      break;
  }
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace headrace::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::device {

HWY_EXPORT(products_nt_target);
HWY_EXPORT(products_nn_add_target);
HWY_EXPORT(target_name);

void products_nt(std::int64_t M, std::int64_t N, std::int64_t K, const float* a, std::int64_t lda, const float* b,
                 std::int64_t ldb, float* c, std::int64_t ldc, Update update) {
  HWY_DYNAMIC_DISPATCH(products_nt_target)(M, N, K, a, lda, b, ldb, c, ldc, update);
}

void products_nn_add(std::int64_t M, std::int64_t N, std::int64_t K, const float* a, std::int64_t lda, const float* b,
                     std::int64_t ldb, float* c, std::int64_t ldc) {
  HWY_DYNAMIC_DISPATCH(products_nn_add_target)(M, N, K, a, lda, b, ldb, c, ldc);
}

const char* tile_products_target() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

}  // namespace headrace::device
#endif  // HWY_ONCE
