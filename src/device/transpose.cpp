// SPDX-License-Identifier: Apache-2.0
#include "device/transpose.h"

#include <algorithm>

// The transposed blocks are arrays of vectors, which scalable-vector targets do not allow; Arm runs NEON instead.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/transpose.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headrace::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Four rows of four: what shuffles within 128 bits transpose, the same on every target.
constexpr std::int64_t kBlock = 4;

// Rows that are read side by side, so that whole cache lines of `out` are written.
constexpr std::int64_t kRowsAtOnce = 16;

#if HWY_TARGET == HWY_SCALAR

template <class T>
void transpose_block(const T* in, std::int64_t in_ld, float* out, std::int64_t out_ld) {
  for (std::int64_t c = 0; c < kBlock; ++c) {
    for (std::int64_t r = 0; r < kBlock; ++r) {
      out[c * out_ld + r] = static_cast<float>(in[r * in_ld + c]);
    }
  }
}

#else

using Block = hn::FixedTag<float, kBlock>;
using V = hn::Vec<Block>;

V load(const float* values) { return hn::LoadU(Block(), values); }

V load(const bfloat16* values) {
  const hn::Rebind<std::uint16_t, Block> narrow;
  const hn::RebindToUnsigned<Block> wide;
  const auto bits = hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(values)));
  return hn::BitCast(Block(), hn::ShiftLeft<16>(bits));
}

template <class T>
void transpose_block(const T* in, std::int64_t in_ld, float* out, std::int64_t out_ld) {
  const Block d;
  const hn::Repartition<double, Block> pairs;
  const V row0 = load(in);
  const V row1 = load(in + in_ld);
  const V row2 = load(in + 2 * in_ld);
  const V row3 = load(in + 3 * in_ld);
  // Columns 0 and 1, then 2 and 3, of two rows each.
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, row0, row1));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, row0, row1));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, row2, row3));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, row2, row3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, out);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, out + out_ld);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, out + 2 * out_ld);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, out + 3 * out_ld);
}

#endif

template <class T>
void transpose_rows(std::int64_t M, std::int64_t N, const T* in, std::int64_t in_ld, float* out, std::int64_t out_ld) {
  const std::int64_t whole_rows = M / kBlock * kBlock;
  std::int64_t whole_columns = 0;
  for (; whole_columns + kBlock <= N; whole_columns += kBlock) {
    for (std::int64_t m = 0; m < whole_rows; m += kBlock) {
      transpose_block(in + m * in_ld + whole_columns, in_ld, out + whole_columns * out_ld + m, out_ld);
    }
  }
  for (std::int64_t m = 0; m < M; ++m) {
    for (std::int64_t n = m < whole_rows ? whole_columns : 0; n < N; ++n) {
      out[n * out_ld + m] = static_cast<float>(in[m * in_ld + n]);
    }
  }
}

template <class T>
void transpose_all(std::int64_t M, std::int64_t N, const T* in, std::int64_t in_ld, float* out, std::int64_t out_ld) {
  for (std::int64_t m = 0; m < M; m += kRowsAtOnce) {
    transpose_rows(std::min(kRowsAtOnce, M - m), N, in + m * in_ld, in_ld, out + m, out_ld);
  }
}

void transpose_floats(std::int64_t M, std::int64_t N, const float* in, std::int64_t in_ld, float* out,
                      std::int64_t out_ld) {
  transpose_all(M, N, in, in_ld, out, out_ld);
}

void transpose_bfloats(std::int64_t M, std::int64_t N, const bfloat16* in, std::int64_t in_ld, float* out,
                       std::int64_t out_ld) {
  transpose_all(M, N, in, in_ld, out, out_ld);
}

}  // namespace headrace::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::device {

HWY_EXPORT(transpose_floats);
HWY_EXPORT(transpose_bfloats);

void transpose(std::int64_t M, std::int64_t N, const float* in, std::int64_t in_ld, float* out, std::int64_t out_ld) {
  HWY_DYNAMIC_DISPATCH(transpose_floats)(M, N, in, in_ld, out, out_ld);
}

void transpose(std::int64_t M, std::int64_t N, const bfloat16* in, std::int64_t in_ld, float* out,
               std::int64_t out_ld) {
  HWY_DYNAMIC_DISPATCH(transpose_bfloats)(M, N, in, in_ld, out, out_ld);
}

}  // namespace headrace::device
#endif  // HWY_ONCE
