// SPDX-License-Identifier: Apache-2.0
#include "attention/paths/path.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace headrace::attention {

double kv_b_proj_bytes(const Attention& attention) noexcept {
  const Geometry& g = attention.geometry;
  return static_cast<double>(g.num_heads * (g.qk_nope_head_dim + g.v_head_dim) * g.kv_lora_rank *
                             size_of(attention.compute));
}

std::vector<std::string> PathAlgorithm::unmet_requirements(const Attention& attention, std::int64_t begin,
                                                           std::int64_t end, bool exact) const {
  const Support can = support();
  std::vector<std::string> unmet;
  if (std::find(can.compute.begin(), can.compute.end(), attention.compute) == can.compute.end()) {
    unmet.push_back(fmt::format("it does not compute in {}", name_of(attention.compute)));
  }
  if (std::find(can.formats.begin(), can.formats.end(), attention.format) == can.formats.end()) {
    unmet.push_back(fmt::format("it does not read the cache format {}", name_of(attention.format)));
  }
  for (std::string& reason : unmet_by_rows(attention, begin, end, exact)) {
    unmet.push_back(std::move(reason));
  }
  return unmet;
}

const CpuPath& cpu_path(Path path) {
  switch (path) {
    case Path::dense_mha:
      return dense_mha();
    case Path::masked_mha:
      return masked_mha();
    case Path::topk_mqa:
      break;
  }
  return topk_mqa();
}

const PathAlgorithm& algorithm_of(Path path, const Device& device) {
  if (device.cuda != nullptr) {
    return cuda_path(path);
  }
  return cpu_path(path);
}

}  // namespace headrace::attention
