// SPDX-License-Identifier: Apache-2.0
#include "routing/workspace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "device/parallel.h"
#include "headrace/error.h"

namespace headrace {
namespace routing {
namespace {

/// What a plan takes at most when the caller sets no limit: enough for products and tiles to run at full rate.
constexpr std::int64_t kDefaultWorkspace = std::int64_t{256} << 20;
constexpr std::int64_t kDefaultCudaWorkspace = std::int64_t{2} << 30;

/// A number of bytes for each path.
using PathBytes = std::array<std::int64_t, std::size(kPaths)>;

/// The workspace of paths that take turns with their bytes, but for what each of them keeps.
std::int64_t bytes_beside(const PathBytes& kept, const PathBytes& bytes) noexcept {
  std::int64_t turns = 0;
  for (std::size_t p = 0; p < bytes.size(); ++p) {
    turns = std::max(turns, bytes[p] - kept[p]);
  }
  return std::accumulate(kept.begin(), kept.end(), turns);
}

}  // namespace

std::int64_t budget_of(const Limits& limits) noexcept {
  if (limits.workspace_bytes != Limits{}.workspace_bytes) {
    return limits.workspace_bytes;
  }
  return limits.device.cuda != nullptr ? kDefaultCudaWorkspace : kDefaultWorkspace;
}

int threads_of(const Device& device) { return device.cuda != nullptr ? 1 : device::thread_count(device.threads); }

Workspace size_workspace(const Attention& attention, const Limits& limits, const attention::PathExtents& extents) {
  Workspace result;
  PathBytes bytes{};
  PathBytes could_keep{};
  for (std::size_t p = 0; p < bytes.size(); ++p) {
    if (extents[p].rows == 0) {
      continue;
    }
    const attention::PathAlgorithm& algorithm = attention::algorithm_of(kPaths[p], limits.device);
    const std::int64_t least =
        algorithm.workspace_bytes(attention, extents[p], algorithm.choose_blocking(attention, extents[p], 0));
    result.blocking[p] = algorithm.choose_blocking(attention, extents[p], std::max(budget_of(limits), least));
    bytes[p] = algorithm.workspace_bytes(attention, extents[p], result.blocking[p]);
    could_keep[p] = algorithm.kept_bytes(attention, extents[p], result.blocking[p]);
  }
  const std::int64_t most = std::max(budget_of(limits), bytes_beside({}, bytes));
  for (std::size_t p = 0; p < bytes.size(); ++p) {
    PathBytes kept = result.kept_bytes;
    kept[p] = could_keep[p];
    if (bytes_beside(kept, bytes) <= most) {
      result.kept_bytes = kept;
    }
  }
  result.bytes = bytes_beside(result.kept_bytes, bytes);
  if (result.bytes > limits.workspace_bytes) {
    throw Error("limits.workspace_bytes", fmt::format("at least {} bytes for the batch", result.bytes),
                std::to_string(limits.workspace_bytes));
  }
  return result;
}

}  // namespace routing

std::int64_t workspace_bound(const Attention& attention, const Limits& limits) {
  attention.validate();
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (limits.max_tokens < 1 || limits.max_seq_len < 1 || limits.max_tokens > kMost || limits.max_seq_len > kMost) {
    throw Error("limits", fmt::format("max_tokens and max_seq_len from 1 to {}", kMost),
                fmt::format("{} and {}", limits.max_tokens, limits.max_seq_len));
  }
  if (limits.max_requests < 0 || limits.max_requests > kMost) {
    throw Error("limits.max_requests", fmt::format("0 to {}", kMost), std::to_string(limits.max_requests));
  }
  const std::int64_t requests = limits.max_requests > 0 ? limits.max_requests : limits.max_tokens;
  const attention::Extents extents{.rows = limits.max_tokens,
                                   .request_rows = std::min(limits.max_tokens, limits.max_seq_len),
                                   .keys = limits.max_seq_len,
                                   .total_keys = std::min(limits.max_tokens, requests) * limits.max_seq_len,
                                   .requests = requests,
                                   .other_rows = 1,  // where there are some, a path may take more
                                   .threads = routing::threads_of(limits.device)};
  std::int64_t bound = 0;
  routing::PathBytes bytes{};
  routing::PathBytes kept{};
  for (const Path path : kPaths) {
    const attention::PathAlgorithm& algorithm = attention::algorithm_of(path, limits.device);
    const std::int64_t least =
        algorithm.workspace_bytes(attention, extents, algorithm.choose_blocking(attention, extents, 0));
    if (least > limits.workspace_bytes) {
      throw Error("limits.workspace_bytes", fmt::format("at least {} bytes for {}", least, name_of(path)),
                  std::to_string(limits.workspace_bytes));
    }
    // A plan stays within its budget or takes the least; smaller batches never take more than everything at once.
    const auto p = static_cast<std::size_t>(path);
    const Blocking everything = algorithm.choose_blocking(attention, extents, std::numeric_limits<std::int64_t>::max());
    bytes[p] = algorithm.workspace_bytes(attention, extents, everything);
    kept[p] = algorithm.kept_bytes(attention, extents, everything);
    bound = std::max(bound, std::min(bytes[p], std::max(routing::budget_of(limits), least)));
  }
  // What paths keep makes a plan larger within its budget only.
  return std::max(bound, std::min(routing::bytes_beside(kept, bytes), routing::budget_of(limits)));
}

}  // namespace headrace
