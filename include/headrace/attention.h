// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "headrace/cache.h"
#include "headrace/export.h"
#include "headrace/geometry.h"
#include "headrace/indexer.h"
#include "headrace/plan.h"
#include "headrace/selection.h"
#include "headrace/view.h"

namespace headrace {

/// Weights the attention itself needs; both are views on memory of the caller.
struct Weights {
  ConstAnyView kv_b_proj;  ///< [H * (nope + v), R] compute dtype; of head h first its W_UK rows, then its W_UV rows
  View<const float> sink;  ///< [H] or empty: a logit per head that takes softmax mass and gives no value
};

/// What one call reads. Lengths here are exact; they may be below the bounds the plan was made from.
struct Inputs {
  ConstAnyView q;   ///< [T, H, nope + rope] compute dtype, rope applied; last dim contiguous, rows apart
  CacheView cache;  ///< this step's tokens already appended
  Requests requests;
  Selection selection;  ///< may be empty where the plan's rule covers every row
  /// The caller's word that this is another layer with the same selection. It means that selection, lengths, block
  /// table, page size and workspace are those of the previous call with this plan on this stream (in a graph: of an
  /// earlier call in the same graph), and that nothing else has written to the workspace since. A path whose
  /// plan.kept_bytes(path) is not 0 then uses again what it made of the selection; other paths ignore the word. If the
  /// word is false, rows are wrong, but nothing outside the views is read or written.
  bool selection_kept = false;
};

/// What one call writes. Partial tiles are stored row by row: nothing outside the views is touched.
struct Outputs {
  AnyView out;  ///< [T, H, v] compute dtype or float32
  View<float>
      lse;  ///< [T, H] or empty: natural log of the sum of exp(scale * q.k) over attended keys, without the sink
};

/// Runs a plan: for each query token, softmax attention over its selected causal keys, exactly as docs/contract.md
/// says. A row that attends to nothing gives output 0 and LSE -inf.
/// Everything of the problem's size comes from `workspace`, of at least plan.workspace_bytes(), aligned to 64 bytes;
/// beside it, matrix products take up to 0.75 MiB a thread while they run.
/// @throws Error when a view does not match the plan, an exact length exceeds its bound, or a page of a request's
///         keys lies outside the cache
HEADRACE_EXPORT void attend(const Plan& plan, const Weights& weights, const Inputs& inputs, const Outputs& outputs,
                            std::span<std::byte> workspace);

}  // namespace headrace
