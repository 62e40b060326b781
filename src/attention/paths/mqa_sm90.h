// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/arena.h"
#include "attention/paths/mqa_passes.h"
#include "attention/paths/path.h"
#include "attention/tables.h"
#include "device/cuda/stream.h"
#include "headrace/attention.h"

namespace headrace::attention {

/// The passes of topk_mqa and where their tables lie.
struct MqaTables {
  MqaPasses passes;
  std::int64_t tokens = 0;  ///< of the batch, at most
  TableAt<mqa::PathRows> rows;
  TableAt<mqa::TileReference> tiles;
  TableAt<cache::cuda::KeyRun> runs;
  TableAt<std::int64_t> first_rows;
};

/// topk_mqa on sm_90: where the cache is not bfloat16, convert the requests' keys; then for each slice of tiles build
/// union lists, absorb the up-projection into the queries, attend to the latents and project what comes out.
class MqaSm90 final : public PathAlgorithm {
 public:
  [[nodiscard]] Work count_work(const Attention& attention, std::int64_t begin, std::int64_t end,
                                std::int64_t query_slice) const override;
  [[nodiscard]] std::int64_t workspace_bytes(const Attention& attention, const Extents& extents,
                                             const Blocking& blocking) const override;
  [[nodiscard]] std::int64_t kept_bytes(const Attention& attention, const Extents& extents,
                                        const Blocking& blocking) const override;
  /// mqa_blocking.h says what the numbers count.
  [[nodiscard]] Blocking choose_blocking(const Attention& attention, const Extents& extents,
                                         std::int64_t budget) const override;

  [[nodiscard]] std::int64_t table_bound(const Attention& attention, const Extents& extents,
                                         std::int64_t budget) const override;

  /// Serves any rows.
  [[nodiscard]] bool serves_rows(const Attention& /*attention*/, std::int64_t /*begin*/, std::int64_t /*end*/,
                                 bool /*exact*/) const override {
    return true;
  }

  /// In the memory of earlier passes.
  static void plan_passes(const Plan& plan, std::span<RowsOnPath> rows, MqaPasses& passes);
  /// Throws Error where inputs do not suit this path. @param tokens  of the batch the plan was made for, at most
  static void validate(const Call& call, std::int64_t tokens);
  /// @param extents  those the plan's workspace was sized for
  void run(const Call& call, const Extents& extents, const MqaTables& tables, PathArenas arenas, Stream stream) const;
  /// Loads the kernels, which a first call that is captured must not do.
  static void load();

 private:
  [[nodiscard]] Support support() const override;
  [[nodiscard]] std::vector<std::string> unmet_by_geometry(const Geometry& geometry) const override;
  [[nodiscard]] std::vector<std::string> unmet_by_rows(const Attention& /*attention*/, std::int64_t /*begin*/,
                                                       std::int64_t /*end*/, bool /*exact*/) const override {
    return {};
  }
};

}  // namespace headrace::attention
