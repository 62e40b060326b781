// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "headrace/attention.h"
#include "headrace/plan.h"
#include "headrace/tensor.h"
#include "selection/generators.h"

namespace headrace::routing {

/// New and cached tokens of a request.
struct TrialRequest {
  std::int32_t query_len = 0;
  std::int32_t context_len = 0;
};

/// A step with seeded random contents and everything `attend` reads and writes, for measurements.
class Trial {
 public:
  /// @param generator  selections of every request; absent: none, for rules that cover every row
  Trial(const Attention& attention, std::span<const TrialRequest> requests,
        const std::optional<selection::Generator>& generator, int threads, std::uint64_t seed);

  [[nodiscard]] Plan make_plan(std::optional<Path> force, const std::optional<Profile>& profile = {}) const;
  /// Milliseconds of one `attend`. The workspace is made (and touched) outside of it.
  double run_ms(const Plan& plan);
  /// Keys that the rows attend to, added up: what the selections hold, or every causal key.
  [[nodiscard]] std::int64_t selected_pairs() const noexcept { return selected_pairs_; }
  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }

 private:
  void fill_cache(std::uint64_t seed);
  void fill_selections(const selection::Generator& generator, std::span<const TrialRequest> requests);

  Attention attention_;
  int threads_;
  std::int64_t tokens_ = 0;
  std::int64_t selected_pairs_ = 0;
  std::vector<std::int32_t> query_len_;
  std::vector<std::int32_t> seq_len_;
  std::vector<std::int32_t> query_start_;
  std::vector<std::int32_t> block_table_;
  Tensor q_;
  Tensor kv_b_proj_;
  Tensor cache_;
  Tensor index_;
  Tensor count_;
  Tensor out_;
  Tensor lse_;
  Tensor workspace_;
  CacheView cache_view_;
  Requests requests_;
};

}  // namespace headrace::routing
