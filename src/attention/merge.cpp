// SPDX-License-Identifier: Apache-2.0
#include "attention/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/merge.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// After highway.h: the vector exp.
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace headrace::attention::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;

/// The lanes of a vector of keys [i, i + lanes) that the mask selects and that exist.
auto selected(D d, std::uint64_t mask, std::int64_t i) {
  const std::uint64_t bits = mask >> i;
  return hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&bits));
}

float merge_tile_target(std::int64_t keys, float* scores, float scale, std::uint64_t mask, RowState& state) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  if (keys < 64) {
    mask &= (std::uint64_t{1} << keys) - 1;
  }
  if (mask == 0) {
    std::fill_n(scores, keys, 0.0F);
    return 1.0F;
  }
  const auto factor = hn::Set(d, scale);
  auto largest = hn::Set(d, state.max);
  for (std::int64_t i = 0; i < keys; i += lanes) {
    const auto score =
        hn::Mul(hn::MaskedLoad(hn::FirstN(d, static_cast<std::size_t>(keys - i)), d, scores + i), factor);
    largest = hn::Max(largest, hn::IfThenElse(selected(d, mask, i), score, largest));
  }
  const float max = hn::GetLane(hn::MaxOfLanes(d, largest));
  const auto shift = hn::Set(d, max);
  auto sum = hn::Zero(d);
  for (std::int64_t i = 0; i < keys; i += lanes) {
    const auto exists = hn::FirstN(d, static_cast<std::size_t>(keys - i));
    const auto score = hn::Mul(hn::MaskedLoad(exists, d, scores + i), factor);
    // The vector exp of NaN is 0; score - score is 0, or NaN for a score that is not finite.
    const auto weight =
        hn::IfThenElseZero(selected(d, mask, i), hn::Add(hn::Exp(d, hn::Sub(score, shift)), hn::Sub(score, score)));
    sum = hn::Add(sum, weight);
    hn::BlendedStore(weight, exists, d, scores + i);
  }
  const float rescale = state.sum == 0.0F ? 1.0F : std::exp(state.max - max);
  state.sum = state.sum * rescale + hn::GetLane(hn::SumOfLanes(d, sum));
  state.max = max;
  return rescale;
}

void scale_values_target(std::int64_t n, float* x, float factor) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto f = hn::Set(d, factor);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), f), d, x + i);
  }
  for (; i < n; ++i) {
    x[i] *= factor;
  }
}

}  // namespace headrace::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::attention {

HWY_EXPORT(merge_tile_target);
HWY_EXPORT(scale_values_target);

float merge_tile(std::int64_t keys, float* scores, float scale, std::uint64_t mask, RowState& state) {
  return HWY_DYNAMIC_DISPATCH(merge_tile_target)(keys, scores, scale, mask, state);
}

void scale_values(std::int64_t n, float* x, float factor) { HWY_DYNAMIC_DISPATCH(scale_values_target)(n, x, factor); }

float finish_row(const RowState& state, const float* sink, float& lse) {
  if (state.sum == 0.0F) {
    lse = -std::numeric_limits<float>::infinity();
    return 0.0F;
  }
  lse = state.max + std::log(state.sum);
  const float share = sink == nullptr ? 1.0F : 1.0F / (1.0F + std::exp(*sink - lse));
  return share / state.sum;
}

}  // namespace headrace::attention
#endif  // HWY_ONCE
