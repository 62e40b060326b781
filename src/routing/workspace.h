// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <iterator>

#include "attention/paths/path.h"
#include "headrace/plan.h"

namespace headrace::routing {

/// What paths may take: the caller's limit, or the default where none is set.
[[nodiscard]] std::int64_t budget_of(const Limits& limits) noexcept;

/// Threads that a plan counts with. A GPU counts as one.
[[nodiscard]] int threads_of(const Device& device);

/// How every path's work is cut, and the workspace that needs.
struct Workspace {
  std::array<Blocking, std::size(kPaths)> blocking{};
  std::array<std::int64_t, std::size(kPaths)> kept_bytes{};
  std::int64_t bytes = 0;
};

/// @throws Error where the batch needs more than the limit
[[nodiscard]] Workspace size_workspace(const Attention& attention, const Limits& limits,
                                       const attention::PathExtents& extents);

}  // namespace headrace::routing
