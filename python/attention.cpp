// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/dtype_names.h"
#include "handles.h"
#include "headrace/cache.h"
#include "headrace/selection.h"

namespace headrace::python {
namespace {

/// Cuts the part before `separator` off the front of a text; everything where it does not occur.
std::string_view take_until(std::string_view& text, char separator) {
  const std::size_t at = text.find(separator);
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at == std::string_view::npos ? text.size() : at + 1);
  return part;
}

std::optional<std::int64_t> number_in(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole ? std::optional(value) : std::nullopt;
}

/// The rule that SelectionRule::to_string writes so, spaces aside.
std::optional<SelectionRule> parse_rule(std::string text) {
  std::erase(text, ' ');
  if (text == "none") {
    return SelectionRule::none();
  }
  if (text == "opaque") {
    return SelectionRule::opaque();
  }
  if (text.empty() || text.back() != ')') {
    return std::nullopt;
  }
  text.pop_back();
  std::string_view rest = text;
  const std::string_view name = take_until(rest, '(');
  const std::optional<std::int64_t> first = number_in(take_until(rest, ','));
  if (!first) {
    return std::nullopt;
  }
  if (name == "kpool") {
    const std::optional<std::int64_t> pool = number_in(take_until(rest, ','));
    if (pool && (rest.empty() || rest == "tail")) {
      return SelectionRule::kpool(*first, *pool, rest == "tail");
    }
    return std::nullopt;
  }
  if (!rest.empty()) {
    return std::nullopt;
  }
  if (name == "lightning") {
    return SelectionRule::lightning(*first);
  }
  return name == "opaque" ? std::optional(SelectionRule::opaque(*first)) : std::nullopt;
}

/// The entry that a text names.
template <class Value, std::size_t Count>
Value find_name(const char* argument, const std::array<std::pair<std::string_view, Value>, Count>& known,
                std::string_view text) {
  std::string names;
  for (const auto& [name, value] : known) {
    if (name == text) {
      return value;
    }
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  throw Error(argument, "one of " + names, '"' + std::string(text) + '"');
}

constexpr std::array kSpaces = {
    std::pair<std::string_view, SelectionSpace>{"request_position", SelectionSpace::request_position},
    std::pair<std::string_view, SelectionSpace>{"cache_slot", SelectionSpace::cache_slot}};

template <class Value>
Value expect_known(const char* argument, const std::optional<Value>& found, std::string_view names,
                   std::string_view text) {
  if (!found) {
    throw Error(argument, std::string(names), '"' + std::string(text) + '"');
  }
  return *found;
}

}  // namespace

Attention attention_of(const HrAttention& attention) {
  const std::optional<SelectionRule> rule = parse_rule(attention.rule);
  if (!rule) {
    throw Error("rule", "none, lightning(TOPK), kpool(TOPK, POOL, tail), kpool(TOPK, POOL), opaque or opaque(WIDTH)",
                '"' + std::string(attention.rule) + '"');
  }
  Attention result{
      .geometry = {.num_heads = attention.num_heads,
                   .kv_lora_rank = attention.kv_lora_rank,
                   .qk_nope_head_dim = attention.qk_nope_head_dim,
                   .qk_rope_head_dim = attention.qk_rope_head_dim,
                   .v_head_dim = attention.v_head_dim},
      .rule = *rule,
      .scale = attention.scale,
      .compute = expect_known("compute", compute_from_name(attention.compute), kComputeNames, attention.compute),
      .format = expect_known("cache_format", cache_format_from_name(attention.cache_format), kCacheFormatNames,
                             attention.cache_format),
      .space = find_name("space", kSpaces, attention.space)};
  result.validate();
  return result;
}

Batch batch_of(const HrBatch& batch) {
  const auto count = static_cast<std::size_t>(batch.requests);
  return {.query_len = {batch.query_len, count}, .seq_len_bound = {batch.seq_len, count}, .exact = batch.exact != 0};
}

}  // namespace headrace::python
