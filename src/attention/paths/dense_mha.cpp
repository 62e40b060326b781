// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "attention/paths/mha_steps.h"
#include "attention/paths/path.h"

namespace headrace::attention {
namespace {

class DenseMha final : public PathAlgorithm {
 public:
  [[nodiscard]] Work count_work(const Attention& attention, std::int64_t begin, std::int64_t end,
                                std::int64_t query_slice) const override;
  [[nodiscard]] std::int64_t workspace_bytes(const Attention& attention, const Extents& extents,
                                             const Blocking& blocking) const override;
  [[nodiscard]] Blocking choose_blocking(const Attention& attention, const Extents& extents,
                                         std::int64_t budget) const override;
  void run(const Call& call, std::span<const Rows> rows, Arena arena) const override;

 private:
  [[nodiscard]] Support support() const override;
  [[nodiscard]] std::vector<std::string> unmet_by_rows(const Attention& attention, std::int64_t begin, std::int64_t end,
                                                       bool exact) const override;
};

}  // namespace

Support DenseMha::support() const {
  static constexpr DType kCompute[] = {DType::float32, DType::bfloat16};
  static constexpr CacheFormat kFormats[] = {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8,
                                             CacheFormat::fp8_ds_mla};
  return {.compute = kCompute, .formats = kFormats};
}

std::vector<std::string> DenseMha::unmet_by_rows(const Attention& attention, std::int64_t begin, std::int64_t end,
                                                 bool exact) const {
  const SelectionRule& rule = attention.rule;
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

Work DenseMha::count_work(const Attention& attention, std::int64_t begin, std::int64_t end,
                          std::int64_t query_slice) const {
  return count_mha_work(attention, begin, end, query_slice);
}

std::int64_t DenseMha::workspace_bytes(const Attention& attention, const Extents& extents,
                                       const Blocking& blocking) const {
  return mha_workspace_bytes(attention, extents, blocking, MaskUse::causal);
}

Blocking DenseMha::choose_blocking(const Attention& attention, const Extents& extents, std::int64_t budget) const {
  return choose_mha_blocking(attention, extents, budget, MaskUse::causal);
}

void DenseMha::run(const Call& call, std::span<const Rows> rows, Arena arena) const {
  run_mha(call, rows, MaskUse::causal, arena);
}

const PathAlgorithm& dense_mha() {
  static const DenseMha algorithm;
  return algorithm;
}

}  // namespace headrace::attention
