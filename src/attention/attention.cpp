// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <string>

#include "headrace/error.h"
#include "headrace/plan.h"

namespace headrace {

void Attention::validate() const {
  geometry.validate();
  // Kernels hold the scale in float32, and multiply it with running maxima that start at -1e30.
  constexpr double kLargestScale = 1e6;
  if (!std::isnormal(static_cast<float>(scale)) || scale <= 0.0 || scale > kLargestScale) {
    throw Error("attention.scale", "a normal float32 above 0 and at most 1e6", fmt::format("{}", scale));
  }
  if (compute != DType::float32 && compute != DType::bfloat16) {
    throw Error("attention.compute", "float32 or bfloat16", std::string(name_of(compute)));
  }
  static_cast<void>(cache_row_bytes(format, geometry));
}

std::string_view name_of(Path path) noexcept {
  switch (path) {
    case Path::dense_mha:
      return "dense_mha";
    case Path::masked_mha:
      return "masked_mha";
    case Path::topk_mqa:
      return "topk_mqa";
  }
  return "unknown";
}

Path path_from_name(std::string_view name) {
  for (const Path path : kPaths) {
    if (name == name_of(path)) {
      return path;
    }
  }
  throw Error("path", "dense_mha, masked_mha or topk_mqa", "\"" + std::string(name) + "\"");
}

}  // namespace headrace
