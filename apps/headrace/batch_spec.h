// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/plan.h"

namespace headrace::app {

/// One request of a step, as SPEC writes it.
struct RequestSpec {
  std::int64_t query_len = 0;
  std::int64_t context_len = 0;

  [[nodiscard]] std::int64_t seq_len() const noexcept { return context_len + query_len; }
  /// "2048", "1+8192".
  [[nodiscard]] std::string to_string() const;
  bool operator==(const RequestSpec&) const = default;
};

/// Most requests of one SPEC, so that a typing error is an error and not a machine out of memory.
inline constexpr std::int64_t kMaxRequests = 65536;

/// Reads a comma list of `[COUNTx]QUERY[+CONTEXT]` where every number may end in k (1024) or m (1024k): "8x2048",
/// "64x1+32k", "2k,4k+2k", "1m". QUERY may be 0, COUNT may not.
/// @throws Error naming the item that is malformed; for more than kMaxRequests requests; for a request, or new tokens
///         in all, of 2^31 or more (positions and token numbers are 32-bit)
[[nodiscard]] std::vector<RequestSpec> parse_batch_spec(std::string_view text);

/// The new tokens of a batch.
[[nodiscard]] std::int64_t query_tokens(const std::vector<RequestSpec>& batch);

/// The lengths of a batch in the form that plan() takes, with their memory.
struct BatchLengths {
  explicit BatchLengths(const std::vector<RequestSpec>& batch);
  [[nodiscard]] Batch view() const { return {query_len, seq_len, true}; }

  std::vector<std::int32_t> query_len;
  std::vector<std::int32_t> seq_len;
};

}  // namespace headrace::app
