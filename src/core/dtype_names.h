// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "headrace/cache.h"
#include "headrace/dtype.h"

namespace headrace {

// What people call the types, in capitals or not. Everything that reads such a name from a person or a file of ours
// asks here, so that no command refuses a spelling that another takes.

/// "float32" or "fp32", "bfloat16" or "bf16": the types that attention computes in. Nothing for any other text.
[[nodiscard]] std::optional<DType> compute_from_name(std::string_view text);
/// The same names for the unquantised formats; "fp8" or "fp8_e4m3", which is what fp8 holds; "fp8_ds_mla".
[[nodiscard]] std::optional<CacheFormat> cache_format_from_name(std::string_view text);

/// The names as an error lists them.
inline constexpr std::string_view kComputeNames = "bfloat16 (or bf16) or float32 (or fp32)";
inline constexpr std::string_view kCacheFormatNames =
    "float32 (or fp32), bf16 (or bfloat16), fp8 (or fp8_e4m3) or fp8_ds_mla";

}  // namespace headrace
