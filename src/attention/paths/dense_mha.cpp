// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "attention/paths/mha_steps.h"
#include "attention/paths/path.h"

namespace headrace::attention {
namespace {

class DenseMha final : public MhaAlgorithm {
 public:
  DenseMha() noexcept : MhaAlgorithm(MaskUse::causal) {}

  [[nodiscard]] bool serves_rows(const Attention& attention, std::int64_t begin, std::int64_t end,
                                 bool exact) const override {
    return !first_uncovered(attention.rule, begin, end, exact);
  }

 private:
  [[nodiscard]] std::vector<std::string> unmet_by_rows(const Attention& attention, std::int64_t begin, std::int64_t end,
                                                       bool exact) const override {
    return uncovered_rows(attention.rule, begin, end, exact);
  }
};

}  // namespace

std::optional<std::int64_t> first_uncovered(const SelectionRule& rule, std::int64_t begin, std::int64_t end,
                                            bool exact) noexcept {
  // Rows beyond the covered prefix: under a k-pool rule without a tail single ones may still be covered, which only
  // their exact position tells.
  std::int64_t position = std::max(begin, rule.covered_prefix());
  while (position < end && exact && rule.covers(position)) {
    ++position;
  }
  return position < end ? std::optional(position) : std::nullopt;
}

std::vector<std::string> uncovered_rows(const SelectionRule& rule, std::int64_t begin, std::int64_t end, bool exact) {
  const std::optional<std::int64_t> position = first_uncovered(rule, begin, end, exact);
  if (!position) {
    return {};
  }
  if (rule.kind() == SelectionRule::Kind::opaque) {
    return {"nothing proves that the caller's own (opaque) selection covers every causal key"};
  }
  const std::string known = rule.kind() == SelectionRule::Kind::kpool && !rule.tail()
                                ? "without a tail it covers only rows that see a multiple of the pool"
                                : fmt::format("it covers the first {} rows", rule.covered_prefix());
  return {fmt::format("{} does not cover the row at position {}, which sees {} keys: {}", rule.to_string(), *position,
                      *position + 1, known)};
}

const CpuPath& dense_mha() {
  static const DenseMha algorithm;
  return algorithm;
}

}  // namespace headrace::attention
