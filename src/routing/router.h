// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/paths/path.h"
#include "headrace/plan.h"

namespace headrace {

/// Makes a plan: per request the cheapest exact path (or two: one for the rows the selection covers, one for the rest),
/// then the blocking of every path in use and the workspace.
class Router {
 public:
  Router(const Attention& attention, const Batch& batch, const Limits& limits, const Hints& hints);

  [[nodiscard]] Plan make_plan() const;
  /// The requests of a plan at the lengths of this router's batch, every row on the path it was planned for.
  /// @throws Error naming the request that is longer than planned or that its path cannot serve any more
  [[nodiscard]] std::vector<RequestPlan> refresh(std::span<const RequestPlan> made_for) const;

 private:
  /// One path on some rows of a request.
  struct Option {
    Path path = Path::topk_mqa;
    double predicted_ms = 0.0;
    std::vector<std::string> unmet;
  };

  [[nodiscard]] Option evaluate(Path path, std::int64_t begin, std::int64_t end, std::int64_t seq_len) const;
  [[nodiscard]] std::array<Option, 3> evaluate_all(std::int64_t begin, std::int64_t end, std::int64_t seq_len) const;
  /// What the lengths alone say of a request, before it is routed.
  [[nodiscard]] RequestPlan describe(std::int64_t request) const;
  [[nodiscard]] RequestPlan route(std::int64_t request) const;
  [[nodiscard]] RequestPlan refresh(const RequestPlan& made_for) const;
  void route_forced(RequestPlan& plan, const std::array<Option, 3>& options) const;
  void route_cheapest(RequestPlan& plan, const std::array<Option, 3>& options) const;
  static void list_alternatives(RequestPlan& plan, const std::array<Option, 3>& options);
  /// First position whose row reads the selection; the end of the request when none does.
  [[nodiscard]] std::int64_t scoring_begin(std::int64_t begin, std::int64_t end) const;
  void size_workspace(Plan& plan) const;
  [[nodiscard]] std::int64_t budget() const noexcept;
  [[nodiscard]] std::int64_t least_bytes(Path path, std::int64_t keys) const;

  const Attention& attention_;
  const Batch& batch_;
  const Limits& limits_;
  const Hints& hints_;
  Profile profile_;
  int threads_;
};

}  // namespace headrace
