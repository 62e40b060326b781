// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "headrace/view.h"

namespace headrace::attention {

/// Values [i, j, first] to [i, j, first + n) of a float32 or bfloat16 view of rank 3 with a contiguous last dimension.
/// T is float, or the view's own element type.
template <class T>
void load_values(const ConstAnyView& view, std::int64_t i, std::int64_t j, std::int64_t first, std::int64_t n,
                 T* out) noexcept {
  const std::int64_t offset = i * view.stride(0) + j * view.stride(1) + first;
  if (view.dtype() == DType::float32) {
    const auto* values = static_cast<const float*>(view.data()) + offset;
    std::transform(values, values + n, out, [](float value) { return static_cast<T>(value); });
  } else {
    const auto* values = static_cast<const bfloat16*>(view.data()) + offset;
    std::transform(values, values + n, out, [](bfloat16 value) { return static_cast<T>(value); });
  }
}

/// The other way: n float32 values to [i, j, 0] of a float32 or bfloat16 view, rounded once.
inline void store_floats(const float* values, std::int64_t n, const AnyView& view, std::int64_t i,
                         std::int64_t j) noexcept {
  const std::int64_t offset = i * view.stride(0) + j * view.stride(1);
  if (view.dtype() == DType::float32) {
    std::copy_n(values, n, static_cast<float*>(view.data()) + offset);
    return;
  }
  auto* out = static_cast<bfloat16*>(view.data()) + offset;
  for (std::int64_t k = 0; k < n; ++k) {
    out[k] = bfloat16(values[k]);
  }
}

/// Rounds float32 values in place to the compute dtype.
inline void round_to(DType compute, std::int64_t n, float* values) noexcept {
  if (compute == DType::bfloat16) {
    for (std::int64_t k = 0; k < n; ++k) {
      values[k] = static_cast<float>(bfloat16(values[k]));
    }
  }
}

}  // namespace headrace::attention
