// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/paths/path.h"

namespace headrace::attention {

/// Plain causal attention over up-projected keys. Needs proof that the selection covers every row; never reads it.
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

}  // namespace headrace::attention
