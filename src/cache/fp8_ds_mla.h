// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headrace::cache {

/// The row of the fp8_ds_mla format: 512 e4m3 values in four groups of 128, the groups' float32 scales, then 64
/// bfloat16 of rope key. A NoPE row may end after the scales. These are the bytes of vLLM's and SGLang's caches.
inline constexpr std::int64_t kLatentValues = 512;
inline constexpr std::int64_t kRopeValues = 64;
inline constexpr std::int64_t kScaleGroupSize = 128;
inline constexpr std::int64_t kScaleGroups = kLatentValues / kScaleGroupSize;
inline constexpr std::int64_t kScaleOffset = kLatentValues;
inline constexpr std::int64_t kRopeOffset = kScaleOffset + 4 * kScaleGroups;
inline constexpr std::int64_t kRowBytes = kRopeOffset + 2 * kRopeValues;

/// scale = max(amax, kSmallestAmax) / kLargestE4m3
inline constexpr float kSmallestAmax = 1e-4F;
inline constexpr float kLargestE4m3 = 448.0F;

static_assert(kRopeOffset == 528 && kRowBytes == 656);

}  // namespace headrace::cache
