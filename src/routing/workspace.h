// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <iterator>

#include "attention/paths/path.h"
#include "headrace/plan.h"

namespace headrace::routing {

/// What paths may take of the workspace: the caller's limit without what products take, or a default.
struct Budget {
  std::int64_t bytes = 0;
  bool limited = false;       ///< by the caller; a path may take more than a default where it cannot do with that
  std::int64_t products = 0;  ///< bytes of the workspace that a GPU's matrix products take, behind the paths'

  /// The workspace with which paths have so many bytes.
  [[nodiscard]] std::int64_t workspace(std::int64_t path_bytes) const noexcept;
};
[[nodiscard]] Budget budget_of(const Limits& limits, std::int64_t product_bytes) noexcept;

/// What products take of the workspace; warms a GPU up for the attention, unless that was done before.
[[nodiscard]] std::int64_t product_bytes_of(const Attention& attention, const Device& device);

/// @throws Error for a number of threads that no machine has
void validate_threads(const Device& device);
/// Threads that a plan counts with. A GPU counts as one.
[[nodiscard]] int threads_of(const Device& device);

/// How every path's work is cut, and the workspace that needs.
struct Workspace {
  std::array<Blocking, std::size(kPaths)> blocking{};
  std::array<std::int64_t, std::size(kPaths)> kept_bytes{};
  std::int64_t bytes = 0;
};

/// @throws Error where the batch needs more than the limit
[[nodiscard]] Workspace size_workspace(const Attention& attention, const Limits& limits, const Budget& budget,
                                       const attention::PathExtents& extents);

}  // namespace headrace::routing
