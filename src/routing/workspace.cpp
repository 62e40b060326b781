// SPDX-License-Identifier: Apache-2.0
#include "routing/workspace.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "attention/arena.h"
#include "attention/paths/cuda_path.h"
#include "attention/paths/rounding.h"
#include "device/parallel.h"
#include "headrace/error.h"

namespace headrace {
namespace routing {
namespace {

/// What a plan takes at most when the caller sets no limit: enough for products and tiles to run at full rate.
constexpr std::int64_t kDefaultWorkspace = std::int64_t{256} << 20;
constexpr std::int64_t kDefaultCudaWorkspace = std::int64_t{2} << 30;
/// Where the memory of products begins.
constexpr std::int64_t kProductAlignment = 256;

/// A number of bytes for each path.
using PathBytes = std::array<std::int64_t, std::size(kPaths)>;

/// The workspace of paths that take turns with their bytes, but for what each of them keeps.
std::int64_t bytes_beside(const PathBytes& kept, const PathBytes& bytes) noexcept {
  std::int64_t turns = 0;
  for (std::size_t p = 0; p < bytes.size(); ++p) {
    turns = std::max(turns, bytes[p] - kept[p]);
  }
  return std::accumulate(kept.begin(), kept.end(), turns, attention::size_sum);
}

}  // namespace

std::int64_t Budget::workspace(std::int64_t path_bytes) const noexcept {
  return products == 0 ? path_bytes : attention::round_up(path_bytes, kProductAlignment) + products;
}

Budget budget_of(const Limits& limits, std::int64_t product_bytes) noexcept {
  if (limits.workspace_bytes == Limits{}.workspace_bytes) {
    return {.bytes = limits.device.cuda != nullptr ? kDefaultCudaWorkspace : kDefaultWorkspace,
            .products = product_bytes};
  }
  const std::int64_t rest = std::max<std::int64_t>(limits.workspace_bytes - product_bytes, 0);
  return {.bytes = product_bytes == 0 ? rest : attention::round_down(rest, kProductAlignment),
          .limited = true,
          .products = product_bytes};
}

std::int64_t product_bytes_of(const Attention& attention, const Device& device) {
  const bool any = device.cuda != nullptr && std::any_of(std::begin(kPaths), std::end(kPaths), [&](Path path) {
                     return attention::algorithm_of(path, device).unmet_by_attention(attention).empty();
                   });
  return any ? attention::prepare_device(*device.cuda, attention.geometry) : 0;
}

void validate_threads(const Device& device) {
  if (device.threads < 0 || device.threads > kMaxThreads) {
    throw Error("limits.device.threads", fmt::format("a number in [0, {}], 0 for all of the machine's", kMaxThreads),
                std::to_string(device.threads));
  }
}

int threads_of(const Device& device) { return device.cuda != nullptr ? 1 : device::thread_count(device.threads); }

Workspace size_workspace(const Attention& attention, const Limits& limits, const Budget& budget,
                         const attention::PathExtents& extents) {
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
    result.blocking[p] = algorithm.choose_blocking(attention, extents[p], std::max(budget.bytes, least));
    bytes[p] = algorithm.workspace_bytes(attention, extents[p], result.blocking[p]);
    could_keep[p] = algorithm.kept_bytes(attention, extents[p], result.blocking[p]);
  }
  const std::int64_t most = std::max(budget.bytes, bytes_beside({}, bytes));
  for (std::size_t p = 0; p < bytes.size(); ++p) {
    PathBytes kept = result.kept_bytes;
    kept[p] = could_keep[p];
    if (bytes_beside(kept, bytes) <= most) {
      result.kept_bytes = kept;
    }
  }
  result.bytes = budget.workspace(bytes_beside(result.kept_bytes, bytes));
  if (result.bytes > limits.workspace_bytes) {
    throw Error("limits.workspace_bytes", fmt::format("at least {} bytes for the batch", result.bytes),
                std::to_string(limits.workspace_bytes));
  }
  return result;
}

}  // namespace routing

namespace {

/// What plans within limits are at most.
attention::Extents largest_extents(const Attention& attention, const Limits& limits) {
  attention.validate();
  routing::validate_threads(limits.device);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (limits.max_tokens < 1 || limits.max_seq_len < 1 || limits.max_tokens > kMost || limits.max_seq_len > kMost) {
    throw Error("limits", fmt::format("max_tokens and max_seq_len from 1 to {}", kMost),
                fmt::format("{} and {}", limits.max_tokens, limits.max_seq_len));
  }
  if (limits.max_requests < 0 || limits.max_requests > kMost) {
    throw Error("limits.max_requests", fmt::format("0 to {}", kMost), std::to_string(limits.max_requests));
  }
  const std::int64_t requests = limits.max_requests > 0 ? limits.max_requests : limits.max_tokens;
  return {.rows = limits.max_tokens,
          .request_rows = std::min(limits.max_tokens, limits.max_seq_len),
          .keys = limits.max_seq_len,
          .total_keys = std::min(limits.max_tokens, requests) * limits.max_seq_len,
          .requests = requests,
          .other_rows = 1,  // where there are some, a path may take more
          .threads = routing::threads_of(limits.device)};
}

}  // namespace

std::int64_t workspace_bound(const Attention& attention, const Limits& limits) {
  const attention::Extents extents = largest_extents(attention, limits);
  const routing::Budget budget = routing::budget_of(limits, routing::product_bytes_of(attention, limits.device));
  std::int64_t bound = 0;
  routing::PathBytes bytes{};
  routing::PathBytes kept{};
  for (const Path path : kPaths) {
    const attention::PathAlgorithm& algorithm = attention::algorithm_of(path, limits.device);
    const std::int64_t least =
        algorithm.workspace_bytes(attention, extents, algorithm.choose_blocking(attention, extents, 0));
    if (least == attention::kTooMuch) {
      throw Error("limits", fmt::format("batches for which the least workspace of {} can be counted", name_of(path)),
                  fmt::format("{} requests of {} keys", extents.requests, extents.keys));
    }
    if (budget.limited && least > budget.bytes) {
      throw Error("limits.workspace_bytes",
                  fmt::format("at least {} bytes for {}", budget.workspace(least), name_of(path)),
                  std::to_string(limits.workspace_bytes));
    }
    // A plan stays within its budget or takes the least; smaller batches never take more than everything at once.
    const auto p = static_cast<std::size_t>(path);
    const Blocking everything = algorithm.choose_blocking(attention, extents, std::numeric_limits<std::int64_t>::max());
    bytes[p] = algorithm.workspace_bytes(attention, extents, everything);
    kept[p] = algorithm.kept_bytes(attention, extents, everything);
    bound = std::max(bound, std::min(bytes[p], std::max(budget.bytes, least)));
  }
  // What paths keep makes a plan larger within its budget only.
  return budget.workspace(std::max(bound, std::min(routing::bytes_beside(kept, bytes), budget.bytes)));
}

std::int64_t table_bound(const Attention& attention, const Limits& limits) {
  const attention::Extents extents = largest_extents(attention, limits);
  const routing::Budget budget = routing::budget_of(limits, routing::product_bytes_of(attention, limits.device));
  std::int64_t bound = 0;
  for (const Path path : kPaths) {
    bound += attention::algorithm_of(path, limits.device).table_bound(attention, extents, budget.bytes);
  }
  return bound;
}

}  // namespace headrace
