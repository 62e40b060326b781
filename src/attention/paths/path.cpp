// SPDX-License-Identifier: Apache-2.0
#include "attention/paths/path.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "attention/segments.h"

namespace headrace::attention {

double kv_b_proj_bytes(const Attention& attention) noexcept {
  const Geometry& g = attention.geometry;
  return static_cast<double>(g.num_heads * (g.qk_nope_head_dim + g.v_head_dim) * g.kv_lora_rank *
                             size_of(attention.compute));
}

Extents extents_on(Path path, const Attention& attention, const Device& device, std::span<const RequestPlan> requests,
                   int threads) {
  Extents extents{.requests = std::ssize(requests), .threads = threads};
  for (const RequestPlan& request : requests) {
    for (std::size_t s = 0; s < request.segments.size(); ++s) {
      const Segment& segment = request.segments[s];
      if (segment.path != path) {
        extents.other_rows += segment.end - segment.begin;
        continue;
      }
      const std::int64_t rows = most_rows(request, s);
      const std::int64_t keys = most_keys(attention, device, segment.end, request.context_len + request.query_len);
      extents.rows += rows;
      extents.request_rows = std::max(extents.request_rows, rows);
      extents.keys = std::max(extents.keys, keys);
      extents.total_keys += keys;
    }
  }
  return extents;
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
