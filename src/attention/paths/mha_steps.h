// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "attention/arena.h"
#include "attention/paths/path.h"

namespace headrace::attention {

/// Whether rows are told apart by the diagonal alone or by bit masks made from the selection.
enum class MaskUse : std::uint8_t { causal, selection };

/// What dense_mha and masked_mha have in common: per query slice and context block, gather latents, up-project them,
/// flash attention onto the slice's float32 accumulators; then divide, apply the sink, store.
class MhaAlgorithm : public CpuPath {
 public:
  explicit MhaAlgorithm(MaskUse mask) noexcept : mask_(mask) {}

  [[nodiscard]] Work count_work(const Attention& attention, std::int64_t begin, std::int64_t end,
                                std::int64_t query_slice) const override {
    return count_mha_work(attention, begin, end, query_slice);
  }
  [[nodiscard]] std::int64_t workspace_bytes(const Attention& attention, const Extents& extents,
                                             const Blocking& blocking) const final;
  /// Context blocks are kept long enough for the up-projection to run at full rate; the rest of the budget goes to long
  /// query slices, since every slice up-projects its context anew.
  [[nodiscard]] Blocking choose_blocking(const Attention& attention, const Extents& extents,
                                         std::int64_t budget) const final;
  void run(const Call& call, std::span<const Rows> rows, Arena arena) const final;

 private:
  [[nodiscard]] Support support() const final;
  /// Any dimensions.
  [[nodiscard]] std::vector<std::string> unmet_by_geometry(const Geometry& /*geometry*/) const final { return {}; }

  MaskUse mask_;
};

}  // namespace headrace::attention
