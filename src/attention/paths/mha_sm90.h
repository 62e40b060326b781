// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/arena.h"
#include "attention/paths/mha_passes.h"
#include "attention/paths/path.h"
#include "attention/tables.h"
#include "device/cuda/stream.h"
#include "headrace/attention.h"

namespace headrace::attention {

/// The passes of a path and where their tables lie.
struct MhaTables {
  MhaPasses passes;
  TableAt<cache::cuda::KeyRun> runs;
  TableAt<mha::sm90::RequestSpan> spans;
  TableAt<mha::sm90::QueryTile> tiles;
};

/// dense_mha and masked_mha on sm_90: per pass gather latents, up-project them, with a selection build bit masks, and
/// flash attention, which merges with what earlier passes gave.
class MhaSm90 final : public PathAlgorithm {
 public:
  explicit MhaSm90(bool masked) noexcept : masked_(masked) {}

  [[nodiscard]] Work count_work(const Attention& attention, std::int64_t begin, std::int64_t end,
                                std::int64_t query_slice) const override;
  [[nodiscard]] std::int64_t workspace_bytes(const Attention& attention, const Extents& extents,
                                             const Blocking& blocking) const override;
  [[nodiscard]] std::int64_t kept_bytes(const Attention& attention, const Extents& extents,
                                        const Blocking& blocking) const override;
  /// Everything in one pass where it fits; else every request whole, as many at once as fit; else slices and blocks.
  /// Blocking::query_slice is in whole query tiles, and 0 where rows need nothing; context_block counts the keys of a
  /// pass.
  [[nodiscard]] Blocking choose_blocking(const Attention& attention, const Extents& extents,
                                         std::int64_t budget) const override;

  [[nodiscard]] std::int64_t table_bound(const Attention& attention, const Extents& extents,
                                         std::int64_t budget) const override;

  [[nodiscard]] bool serves_rows(const Attention& attention, std::int64_t begin, std::int64_t end,
                                 bool exact) const override;

  /// In the memory of earlier passes.
  void plan_passes(const Plan& plan, std::span<const RowsOnPath> rows, MhaPasses& passes) const;
  /// Throws Error where views do not suit the kernel, whose copies take 16 bytes at once.
  static void validate(const Call& call);
  /// @param extents  those the plan's workspace was sized for
  void run(const Call& call, const Extents& extents, const MhaTables& tables, PathArenas arenas, Stream stream) const;

 private:
  [[nodiscard]] Support support() const override;
  [[nodiscard]] std::vector<std::string> unmet_by_geometry(const Geometry& geometry) const override;
  [[nodiscard]] std::vector<std::string> unmet_by_rows(const Attention& attention, std::int64_t begin, std::int64_t end,
                                                       bool exact) const override;
  /// Keys that a pass has at least, where a request has more.
  [[nodiscard]] std::int64_t least_block(const Attention& attention, const Extents& extents, std::int64_t budget) const;
  [[nodiscard]] Path path() const noexcept { return masked_ ? Path::masked_mha : Path::dense_mha; }

  bool masked_;
};

}  // namespace headrace::attention
