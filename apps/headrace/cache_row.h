// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "headrace/cache.h"

namespace headrace::app {

/// The bytes of a token's row in a cache, from docs/cache-formats.md alone. It shares no code and no constant with what
/// appends, so that a fault there does not hide.
/// @param scale     of an fp8 cache
/// @param latent    [R]
/// @param rope_key  [rope]; empty for NoPE
/// @return as many bytes as the format defines: the zeros that stand for the rope key of NoPE are not among them
[[nodiscard]] std::vector<std::byte> cache_row(CacheFormat format, float scale, std::span<const float> latent,
                                               std::span<const float> rope_key);

/// The e4m3 code of a number: the nearest, of two as near the even one, beyond 448 that of 448; 0x7f for a NaN.
[[nodiscard]] std::byte e4m3_code(float value);

}  // namespace headrace::app
