// SPDX-License-Identifier: Apache-2.0
#include "attention/paths/mqa_passes.h"

#include <algorithm>

namespace headrace::attention {
namespace {

class MqaBuilder {
 public:
  MqaBuilder(std::int64_t requests, std::int64_t group, const MqaCapacity& capacity, MqaPasses& to)
      : requests_(requests), group_(group), capacity_(capacity), result_(to) {
    result_.rows.resize(static_cast<std::size_t>(requests));
  }

  void add(const RowsOnPath& rows) {
    const bool joins = !result_.stages.empty() && rows.converts == (stage().num_runs > 0) &&
                       (!rows.converts || stage().keys + rows.keys <= capacity_.keys);
    if (!joins) {
      open_stage(rows.converts);
    }
    if (rows.converts) {
      add_keys(rows);
    }
    result_.rows[static_cast<std::size_t>(rows.request)] = {static_cast<std::int32_t>(rows.begin),
                                                            static_cast<std::int32_t>(rows.end)};
    const std::int64_t tiles = mqa::most_tiles(rows.row_count, group_);
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      add_tile(rows, tile);
    }
  }

 private:
  [[nodiscard]] MqaStage& stage() { return result_.stages.back(); }
  [[nodiscard]] MqaSlice& slice() { return result_.slices.back(); }

  void open_stage(bool converts) {
    MqaStage next;
    next.first_run = static_cast<std::int64_t>(result_.runs.size());
    next.first_slice = static_cast<std::int64_t>(result_.slices.size());
    result_.stages.push_back(next);
    if (converts) {
      result_.first_rows.resize(static_cast<std::size_t>(requests_));
    }
  }

  void add_keys(const RowsOnPath& rows) {
    result_.runs.push_back(
        {static_cast<std::int32_t>(rows.request), 0, static_cast<std::int32_t>(rows.keys), stage().keys});
    result_.first_rows[static_cast<std::size_t>(rows.request)] = stage().keys;
    ++stage().num_runs;
    stage().keys += rows.keys;
  }

  void add_tile(const RowsOnPath& rows, std::int64_t tile) {
    if (stage().num_slices == 0 || slice().num_tiles == capacity_.tiles) {
      result_.slices.push_back({.first_tile = static_cast<std::int64_t>(result_.tiles.size())});
      ++stage().num_slices;
    }
    result_.tiles.push_back({static_cast<std::int32_t>(rows.request), static_cast<std::int32_t>(tile)});
    ++slice().num_tiles;
    slice().keys = std::max(slice().keys, rows.keys);
  }

  std::int64_t requests_;
  std::int64_t group_;
  MqaCapacity capacity_;
  MqaPasses& result_;
};

}  // namespace

void plan_mqa_passes(std::span<const RowsOnPath> rows, std::int64_t requests, std::int64_t group,
                     const MqaCapacity& capacity, MqaPasses& passes) {
  passes.clear();
  if (rows.empty()) {
    return;
  }
  MqaBuilder builder(requests, group, capacity, passes);
  for (const bool converting : {false, true}) {
    for (const RowsOnPath& some : rows) {
      if (some.converts == converting) {
        builder.add(some);
      }
    }
  }
}

}  // namespace headrace::attention
