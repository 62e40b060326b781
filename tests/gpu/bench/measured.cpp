// SPDX-License-Identifier: Apache-2.0
#include "measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace headrace::bench {
namespace {

/// A value between the sorted ones, by linear interpolation.
double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - std::floor(place));
}

}  // namespace

double needed_flops(const Plan& plan, std::span<const std::int32_t> count) {
  const Geometry& g = plan.attention().geometry;
  const auto products = static_cast<double>(g.num_heads * (g.qk_nope_head_dim + g.v_head_dim) * g.kv_lora_rank);
  double flops = 0.0;
  std::int64_t first_token = 0;
  for (const RequestPlan& request : plan.requests()) {
    for (const Segment& segment : request.segments) {
      double pairs = 0.0;
      for (std::int64_t position = segment.begin; position < segment.end; ++position) {
        const std::int64_t token = first_token + position - request.context_len;
        pairs += static_cast<double>(count.empty() ? position + 1 : count[static_cast<std::size_t>(token)]);
      }
      const bool latents = segment.path == Path::topk_mqa;
      const std::int64_t dims = latents ? 2 * g.kv_lora_rank + g.qk_rope_head_dim : g.qk_head_dim() + g.v_head_dim;
      const std::int64_t multiplied = latents ? segment.end - segment.begin : segment.end;  // rows, or keys
      flops += 2.0 * products * static_cast<double>(multiplied) + 2.0 * pairs * static_cast<double>(g.num_heads * dims);
    }
    first_token += request.query_len;
  }
  return flops;
}

Quartiles quartiles_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {quantile(values, 0.25), quantile(values, 0.5), quantile(values, 0.75)};
}

std::string ratio_text(const Quartiles& a, const Quartiles& b) {
  const bool apart = a.high < b.low || b.high < a.low;
  return fmt::format("{:.3f}{}", a.median / b.median, apart ? "" : ", within noise");
}

std::string rate_text(double bytes, double flops, double microseconds) {
  if (flops > 0.0) {
    return fmt::format("{:.1f} TFLOP/s", flops / microseconds / 1e6);
  }
  return bytes > 0.0 ? fmt::format("{:.1f} GB/s", bytes / microseconds / 1e3) : "-";
}

}  // namespace headrace::bench
