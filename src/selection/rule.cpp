// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "headrace/error.h"
#include "headrace/selection.h"

namespace headrace {
namespace {

// Positions are int32, so a larger budget would mean nothing; the bound also keeps the sums below from overflowing.
constexpr std::int64_t kMaxTopk = std::numeric_limits<std::int32_t>::max();

void expect_topk(std::int64_t topk) {
  if (topk < 1 || topk > kMaxTopk) {
    throw Error("topk", fmt::format("a number in [1, {}]", kMaxTopk), std::to_string(topk));
  }
}

}  // namespace

SelectionRule SelectionRule::lightning(std::int64_t topk) {
  expect_topk(topk);
  SelectionRule rule;
  rule.kind_ = Kind::lightning;
  rule.topk_ = topk;
  return rule;
}

SelectionRule SelectionRule::kpool(std::int64_t topk, std::int64_t pool, bool tail) {
  expect_topk(topk);
  if (pool < 1 || pool > topk) {
    throw Error("pool", fmt::format("a number in [1, topk = {}]", topk), std::to_string(pool));
  }
  if (topk % pool != 0) {
    throw Error("topk", fmt::format("a multiple of the pool, {}", pool), std::to_string(topk));
  }
  SelectionRule rule;
  rule.kind_ = Kind::kpool;
  rule.topk_ = topk;
  rule.pool_ = pool;
  rule.tail_ = tail;
  return rule;
}

SelectionRule SelectionRule::opaque(std::int64_t width) {
  if (width < 0) {
    throw Error("width", "at least 0", std::to_string(width));
  }
  SelectionRule rule;
  rule.kind_ = Kind::opaque;
  rule.topk_ = width;
  return rule;
}

std::int64_t SelectionRule::width() const noexcept {
  switch (kind_) {
    case Kind::lightning:
      return topk_;
    case Kind::kpool:
      return topk_ + (tail_ ? pool_ - 1 : 0);
    case Kind::opaque:
      return topk_;
    case Kind::none:
      break;
  }
  return 0;
}

bool SelectionRule::covers(std::int64_t position) const noexcept {
  switch (kind_) {
    case Kind::none:
      return true;
    case Kind::lightning:
      return position < topk_;
    case Kind::kpool: {
      const std::int64_t keys = position + 1;
      return keys / pool_ <= topk_ / pool_ && (tail_ || keys % pool_ == 0);
    }
    case Kind::opaque:
      break;
  }
  return false;
}

std::int64_t SelectionRule::covered_prefix() const noexcept {
  switch (kind_) {
    case Kind::none:
      return std::numeric_limits<std::int64_t>::max();
    case Kind::lightning:
      return topk_;
    case Kind::kpool:
      // Without a tail the first row, which sees one key of an incomplete pool, already misses it.
      return tail_ || pool_ == 1 ? topk_ + pool_ - 1 : 0;
    case Kind::opaque:
      break;
  }
  return 0;
}

std::int64_t SelectionRule::keys_at(std::int64_t position) const noexcept {
  const std::int64_t keys = position + 1;
  switch (kind_) {
    case Kind::lightning:
      return std::min(keys, topk_);
    case Kind::kpool:
      return std::min(keys / pool_, topk_ / pool_) * pool_ + (tail_ ? keys % pool_ : 0);
    case Kind::opaque:
      return topk_ == 0 ? keys : std::min(keys, topk_);
    case Kind::none:
      break;
  }
  return keys;
}

std::string SelectionRule::to_string() const {
  switch (kind_) {
    case Kind::none:
      return "none";
    case Kind::lightning:
      return fmt::format("lightning({})", topk_);
    case Kind::kpool:
      return fmt::format("kpool({}, {}{})", topk_, pool_, tail_ ? ", tail" : "");
    case Kind::opaque:
      return topk_ == 0 ? "opaque" : fmt::format("opaque({})", topk_);
  }
  return "unknown";
}

}  // namespace headrace
