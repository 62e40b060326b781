// SPDX-License-Identifier: Apache-2.0
#include "batch_spec.h"

#include <fmt/core.h>

#include <limits>
#include <optional>
#include <utility>

#include "headrace/error.h"
#include "numbers.h"

namespace headrace::app {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

/// Splits at the first `separator`: what stands before it, and what after it (nothing when there is none).
std::pair<std::string_view, std::optional<std::string_view>> split(std::string_view text, char separator) {
  const std::size_t at = text.find(separator);
  if (at == std::string_view::npos) {
    return {text, std::nullopt};
  }
  return {text.substr(0, at), text.substr(at + 1)};
}

struct Item {
  std::int64_t count = 1;
  RequestSpec request;
};

Item parse_item(std::string_view text, std::size_t number) {
  const auto [first, after_x] = split(text, 'x');
  const auto [query_text, context_text] = split(after_x ? *after_x : text, '+');
  const std::optional<std::int64_t> count = after_x ? read_count(first, kMost) : std::optional<std::int64_t>(1);
  const std::optional<std::int64_t> query = read_count(query_text, kMost);
  const std::optional<std::int64_t> context =
      context_text ? read_count(*context_text, kMost) : std::optional<std::int64_t>(0);
  if (!count || *count < 1 || !query || !context) {
    throw Error(
        fmt::format("--batch item {}", number),
        fmt::format("[COUNTx]QUERY[+CONTEXT] with whole numbers up to {}, k = 1024, m = 1024k, COUNT at least 1",
                    kMost),
        fmt::format("\"{}\"", text));
  }
  if (*query + *context > kMost) {
    throw Error(fmt::format("--batch item {}", number), fmt::format("a request of at most {} tokens", kMost),
                fmt::format("\"{}\", {} tokens", text, *query + *context));
  }
  return {*count, {*query, *context}};
}

}  // namespace

std::string RequestSpec::to_string() const {
  return context_len == 0 ? fmt::format("{}", query_len) : fmt::format("{}+{}", query_len, context_len);
}

std::vector<RequestSpec> parse_batch_spec(std::string_view text) {
  std::vector<RequestSpec> batch;
  std::int64_t tokens = 0;
  std::optional<std::string_view> rest = text;
  for (std::size_t number = 1; rest; ++number) {
    const auto [item_text, after] = split(*rest, ',');
    const Item item = parse_item(item_text, number);
    rest = after;
    if (item.count > kMaxRequests - static_cast<std::int64_t>(batch.size())) {
      throw Error("--batch", fmt::format("at most {} requests", kMaxRequests),
                  fmt::format("more, with item {} (\"{}\")", number, item_text));
    }
    // count <= 2^16 and query_len < 2^31: no overflow.
    tokens += item.count * item.request.query_len;
    if (tokens > kMost) {
      throw Error("--batch", fmt::format("at most {} new tokens", kMost),
                  fmt::format("{} with item {} (\"{}\")", tokens, number, item_text));
    }
    batch.insert(batch.end(), static_cast<std::size_t>(item.count), item.request);
  }
  return batch;
}

std::int64_t query_tokens(const std::vector<RequestSpec>& batch) {
  std::int64_t tokens = 0;
  for (const RequestSpec& request : batch) {
    tokens += request.query_len;
  }
  return tokens;
}

BatchLengths::BatchLengths(const std::vector<RequestSpec>& batch) {
  query_len.reserve(batch.size());
  seq_len.reserve(batch.size());
  for (const RequestSpec& request : batch) {
    query_len.push_back(static_cast<std::int32_t>(request.query_len));
    seq_len.push_back(static_cast<std::int32_t>(request.seq_len()));
  }
}

}  // namespace headrace::app
