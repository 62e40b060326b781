// SPDX-License-Identifier: Apache-2.0
#include "routing/batch.h"

#include <fmt/format.h>

#include <limits>

#include "headrace/error.h"

namespace headrace::routing {

void validate_batch(const Batch& batch, const Limits& limits) {
  if (batch.query_len.size() != batch.seq_len_bound.size()) {
    throw Error("batch.seq_len_bound", fmt::format("one entry for each of {} requests", batch.query_len.size()),
                std::to_string(batch.seq_len_bound.size()));
  }
  std::int64_t tokens = 0;
  for (std::size_t b = 0; b < batch.query_len.size(); ++b) {
    if (batch.query_len[b] < 0) {
      throw Error(fmt::format("batch.query_len[{}]", b), "at least 0", std::to_string(batch.query_len[b]));
    }
    if (batch.seq_len_bound[b] < batch.query_len[b]) {
      throw Error(fmt::format("batch.seq_len_bound[{}]", b),
                  fmt::format("at least the {} query tokens", batch.query_len[b]),
                  std::to_string(batch.seq_len_bound[b]));
    }
    tokens += batch.query_len[b];
  }
  if (tokens > std::numeric_limits<std::int32_t>::max()) {
    throw Error("batch.query_len", "fewer than 2^31 tokens in all", std::to_string(tokens));
  }
  for (std::size_t b = 0; b < batch.seq_len_bound.size() && limits.max_seq_len > 0; ++b) {
    if (batch.seq_len_bound[b] > limits.max_seq_len) {
      throw Error(fmt::format("batch.seq_len_bound[{}]", b), fmt::format("at most the limit {}", limits.max_seq_len),
                  std::to_string(batch.seq_len_bound[b]));
    }
  }
  if (limits.max_requests > 0 && std::ssize(batch.query_len) > limits.max_requests) {
    throw Error("batch.query_len", fmt::format("at most the limit of {} requests", limits.max_requests),
                std::to_string(batch.query_len.size()));
  }
  if (limits.max_tokens > 0 && tokens > limits.max_tokens) {
    throw Error("batch.query_len", fmt::format("at most the limit of {} tokens", limits.max_tokens),
                std::to_string(tokens));
  }
}

}  // namespace headrace::routing
