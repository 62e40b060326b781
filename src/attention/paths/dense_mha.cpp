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

 private:
  [[nodiscard]] std::vector<std::string> unmet_by_rows(const Attention& attention, std::int64_t begin, std::int64_t end,
                                                       bool exact) const override {
    return uncovered_rows(attention.rule, begin, end, exact);
  }
};

}  // namespace

std::vector<std::string> uncovered_rows(const SelectionRule& rule, std::int64_t begin, std::int64_t end, bool exact) {
  const std::int64_t prefix = rule.covered_prefix();
  // Rows beyond the covered prefix: under a k-pool rule without a tail single ones may still be covered, which only
  // their exact position tells.
  for (std::int64_t position = std::max(begin, prefix); position < end; ++position) {
    if (rule.kind() == SelectionRule::Kind::opaque) {
      return {"nothing proves that the caller's own (opaque) selection covers every causal key"};
    }
    if (!exact || !rule.covers(position)) {
      const std::string known = rule.kind() == SelectionRule::Kind::kpool && !rule.tail()
                                    ? "without a tail it covers only rows that see a multiple of the pool"
                                    : fmt::format("it covers the first {} rows", prefix);
      return {fmt::format("{} does not cover the row at position {}, which sees {} keys: {}", rule.to_string(),
                          position, position + 1, known)};
    }
  }
  return {};
}

const CpuPath& dense_mha() {
  static const DenseMha algorithm;
  return algorithm;
}

}  // namespace headrace::attention
