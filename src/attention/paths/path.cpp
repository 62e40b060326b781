// SPDX-License-Identifier: Apache-2.0
#include "attention/paths/path.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "attention/segments.h"

namespace headrace::attention {

double kv_b_proj_bytes(const Attention& attention) noexcept {
  const Geometry& g = attention.geometry;
  return static_cast<double>(g.num_heads * (g.qk_nope_head_dim + g.v_head_dim) * g.kv_lora_rank *
                             size_of(attention.compute));
}

PathExtents extents_of(const Attention& attention, const Device& device, std::span<const RequestPlan> requests,
                       int threads) {
  PathExtents all;
  all.fill({.requests = std::ssize(requests), .threads = threads});
  std::array<std::int64_t, std::size(kPaths)> planned{};
  for (const RequestPlan& request : requests) {
    for (std::size_t s = 0; s < request.segments.size(); ++s) {
      const Segment& segment = request.segments[s];
      const auto p = static_cast<std::size_t>(segment.path);
      const std::int64_t rows = most_rows(request, s);
      const std::int64_t keys = most_keys(attention, device, segment.end, request.context_len + request.query_len);
      planned[p] += segment.end - segment.begin;
      all[p].rows += rows;
      all[p].request_rows = std::max(all[p].request_rows, rows);
      all[p].keys = std::max(all[p].keys, keys);
      all[p].total_keys += keys;
    }
  }
  const std::int64_t every_row = std::accumulate(planned.begin(), planned.end(), std::int64_t{0});
  for (std::size_t p = 0; p < all.size(); ++p) {
    all[p].other_rows = every_row - planned[p];
  }
  return all;
}

std::vector<std::string> PathAlgorithm::unmet_by_attention(const Attention& attention) const {
  const Support can = support();
  std::vector<std::string> unmet;
  if (std::find(can.compute.begin(), can.compute.end(), attention.compute) == can.compute.end()) {
    unmet.push_back(fmt::format("it does not compute in {}", name_of(attention.compute)));
  }
  if (std::find(can.formats.begin(), can.formats.end(), attention.format) == can.formats.end()) {
    unmet.push_back(fmt::format("it does not read the cache format {}", name_of(attention.format)));
  }
  for (std::string& reason : unmet_by_geometry(attention.geometry)) {
    unmet.push_back(std::move(reason));
  }
  return unmet;
}

std::vector<std::string> PathAlgorithm::unmet_requirements(const Attention& attention, std::int64_t begin,
                                                           std::int64_t end, bool exact) const {
  std::vector<std::string> unmet = unmet_by_attention(attention);
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
