// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headrace {

/// Upper bounds of what a configuration may ask for. They lie far above every model and low enough that no product of
/// them overflows: tokens * heads * (nope + rope) * 4 bytes <= 2^31 * 2^14 * 2^15 * 2^2 = 2^62.
inline constexpr std::int64_t kMaxHeads = std::int64_t{1} << 14;
inline constexpr std::int64_t kMaxHeadDim = std::int64_t{1} << 14;
inline constexpr std::int64_t kMaxLatentDim = std::int64_t{1} << 16;
inline constexpr std::int64_t kMaxHidden = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxLayers = std::int64_t{1} << 14;
/// Positions are 32-bit in selections and requests.
inline constexpr std::int64_t kMaxPositions = (std::int64_t{1} << 31) - 1;

}  // namespace headrace
