// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "attention/paths/mha_sm90.h"
#include "attention/paths/mqa_sm90.h"
#include "attention/paths/path.h"

namespace headrace::attention {

namespace cuda {
class Projections;
}

/// What a GPU does for a plan: the passes of every path, with the tables that their kernels read. All of it is on the
/// host; `upload` brings the tables to memory of the caller, where each lies at its TableAt.
struct DevicePasses {
  template <class Tables>
  struct OfPath {
    Extents extents;
    Tables tables;
  };
  std::array<OfPath<MhaTables>, 2> mha;  ///< dense_mha, masked_mha
  OfPath<MqaTables> mqa;
  std::array<std::vector<RowsOnPath>, 3> rows;     ///< what they were made from; kept for its memory
  const cuda::Projections* projections = nullptr;  ///< of the plan's geometry; the device's
};

/// Hands every table and its place to `table`, in the order in which they lie.
template <class Passes, class Table>
void for_each_table(Passes& passes, const Table& table) {
  for (auto& [extents, of] : passes.mha) {
    table(of.passes.runs, of.runs);
    table(of.passes.spans, of.spans);
    table(of.passes.tiles, of.tiles);
  }
  auto& mqa = passes.mqa.tables;
  table(mqa.passes.rows, mqa.rows);
  table(mqa.passes.tiles, mqa.tiles);
  table(mqa.passes.runs, mqa.runs);
  table(mqa.passes.first_rows, mqa.first_rows);
}

[[nodiscard]] const MhaSm90& mha_path(bool masked);
[[nodiscard]] const MqaSm90& mqa_path();

}  // namespace headrace::attention
