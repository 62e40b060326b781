// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "headrace/cache.h"

namespace headrace::test {

/// The bytes of one token's row as docs/cache-formats.md lays them out, written without the library's
/// append. An fp8_ds_mla row of NoPE has 528 bytes here.
std::vector<std::byte> encode_row(CacheFormat format, std::span<const float> latent, std::span<const float> rope_key,
                                  float scale);

/// What strides and addresses of a cache are multiples of: the largest element of a row.
std::int64_t row_alignment(CacheFormat format);

}  // namespace headrace::test
