// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/paths/path.h"
#include "headrace/plan.h"
#include "routing/workspace.h"

namespace headrace {

/// Decides for the requests of a batch, one after the other: the cheapest exact path, or two, one for the rows that the
/// selection covers and one for the rest. Makes no texts but those that are asked for.
class Router {
 public:
  /// @param plan      what it decides by: attention, limits, forced path and profile; outlives this
  /// @param requests  of the batch
  /// @param exact     as in Batch
  Router(const Plan& plan, std::int64_t requests, bool exact);

  /// @throws Error when the forced path, or every path, cannot serve it
  [[nodiscard]] RequestPlan route(std::int64_t request, std::int64_t query_len, std::int64_t seq_len) const;
  /// A request at later lengths, every row on the path it was planned for.
  /// @throws Error where the request is longer than planned, or its path cannot serve it any more
  [[nodiscard]] RequestPlan refresh(const RequestPlan& made_for, std::int64_t query_len, std::int64_t seq_len) const;

  /// Why `route` gave a request what it did.
  [[nodiscard]] std::string reason(const RequestPlan& routed) const;
  [[nodiscard]] std::vector<Alternative> alternatives(const RequestPlan& plan) const;

 private:
  /// One path on some rows of a request.
  struct Option {
    Path path = Path::topk_mqa;
    bool can_run = false;
    double predicted_ms = 0.0;
  };
  using Options = std::array<Option, std::size(kPaths)>;

  [[nodiscard]] Option evaluate(Path path, std::int64_t begin, std::int64_t end, std::int64_t seq_len) const;
  [[nodiscard]] Options evaluate_all(std::int64_t begin, std::int64_t end, std::int64_t seq_len) const;
  /// Why an option cannot run; empty when it can.
  [[nodiscard]] std::vector<std::string> unmet(Path path, std::int64_t begin, std::int64_t end,
                                               std::int64_t seq_len) const;
  /// The fastest that can run, or null.
  [[nodiscard]] static const Option* cheapest(const Options& options) noexcept;
  /// Why the chosen option is the one: it is the only one, or the fastest of those that can run.
  [[nodiscard]] static std::string why(const Options& options);

  /// What the lengths alone say of a request, before it is routed.
  [[nodiscard]] RequestPlan describe(std::int64_t request, std::int64_t query_len, std::int64_t seq_len) const;
  void route_forced(RequestPlan& plan) const;
  void route_cheapest(RequestPlan& plan) const;
  [[noreturn]] void refuse(const RequestPlan& plan) const;
  /// First position whose row reads the selection; the end of the request when none does.
  [[nodiscard]] std::int64_t scoring_begin(std::int64_t begin, std::int64_t end) const;

  [[nodiscard]] const attention::PathAlgorithm& algorithm(Path path) const noexcept {
    return *algorithms_[static_cast<std::size_t>(path)];
  }
  /// The workspace that a path takes at least for a request of so many keys.
  [[nodiscard]] std::int64_t least_bytes(Path path, std::int64_t keys) const;
  /// Whether that is within the budget.
  [[nodiscard]] bool fits(Path path, std::int64_t keys) const;

  const Plan& plan_;
  const Attention& attention_;
  std::int64_t requests_;
  bool exact_;
  routing::Budget budget_;
  std::array<const attention::PathAlgorithm*, std::size(kPaths)> algorithms_{};
  /// Keys for which each path was found to fit: what it takes at least grows with the keys.
  mutable std::array<std::int64_t, std::size(kPaths)> fitting_keys_{-1, -1, -1};
};

}  // namespace headrace
