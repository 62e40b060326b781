// SPDX-License-Identifier: Apache-2.0
#include "core/dtype_names.h"

#include <algorithm>
#include <string>

namespace headrace {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return result;
}

}  // namespace

std::optional<DType> compute_from_name(std::string_view text) {
  const std::string name = lower(text);
  if (name == "float32" || name == "fp32") {
    return DType::float32;
  }
  if (name == "bfloat16" || name == "bf16") {
    return DType::bfloat16;
  }
  return std::nullopt;
}

std::optional<CacheFormat> cache_format_from_name(std::string_view text) {
  if (const std::optional<DType> compute = compute_from_name(text)) {
    return *compute == DType::float32 ? CacheFormat::float32 : CacheFormat::bfloat16;
  }
  const std::string name = lower(text);
  if (name == "fp8" || name == "fp8_e4m3") {
    return CacheFormat::fp8;
  }
  if (name == "fp8_ds_mla") {
    return CacheFormat::fp8_ds_mla;
  }
  return std::nullopt;
}

}  // namespace headrace
