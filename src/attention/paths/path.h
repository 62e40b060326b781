// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/arena.h"
#include "headrace/attention.h"
#include "headrace/plan.h"

namespace headrace::attention {

/// Rows at positions [begin, end) of a request.
struct Rows {
  std::int64_t request = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t count() const noexcept { return end - begin; }
};

/// Counted work of a path on some rows; the router turns it into time with a profile's rates.
struct Work {
  double product_flops = 0.0;  ///< up-projection or absorption
  double weight_bytes = 0.0;   ///< of kv_b_proj, read once a slice
  double mha_flops = 0.0;      ///< scores and values over up-projected keys
  double mqa_flops = 0.0;      ///< scores and values over latents
  double gathered = 0.0;       ///< values read from the paged cache
  double mask_keys = 0.0;      ///< selection entries read and mask words written
};

/// Bytes of the up-projection's weights, which every slice reads.
[[nodiscard]] double kv_b_proj_bytes(const Attention& attention) noexcept;

/// The largest sizes a plan's workspace must serve.
struct Extents {
  std::int64_t rows = 0;          ///< on this path, in all requests
  std::int64_t request_rows = 0;  ///< on this path, in the request that has most
  std::int64_t keys = 0;          ///< of the longest request on this path
  std::int64_t total_keys = 0;    ///< of all requests on this path
  std::int64_t requests = 0;      ///< of the batch, on whatever path
  std::int64_t other_rows = 0;    ///< of the batch, on other paths
  int threads = 1;
};

/// What the workspace must serve of a plan on each path.
using PathExtents = std::array<Extents, std::size(kPaths)>;
[[nodiscard]] PathExtents extents_of(const Attention& attention, const Device& device,
                                     std::span<const RequestPlan> requests, int threads);

/// A path's workspace on a GPU: what the paths take in turns and, where layers that share a selection may use again
/// what the path makes of it, a place for that alone.
struct PathArenas {
  Arena scratch;
  std::optional<Arena> kept = std::nullopt;
  std::span<std::byte> products = {};  ///< what matrix products take, which no path counts as its own

  [[nodiscard]] Arena& of_selection() noexcept { return kept ? *kept : scratch; }
};

/// Everything of one call that does not depend on the path.
struct Call {
  const Plan& plan;
  const Weights& weights;
  const Inputs& inputs;
  const Outputs& outputs;
};

/// What a path declares that it can do. What is not listed, it does not have.
struct Support {
  std::span<const DType> compute;
  std::span<const CacheFormat> formats;
};

/// One exact algorithm on one kind of device: what it needs, what it costs, how much memory it takes. Knows nothing of
/// routing.
class PathAlgorithm {
 public:
  virtual ~PathAlgorithm() = default;

  /// Reasons why it cannot serve rows [begin, end) of a request; empty when it can.
  [[nodiscard]] std::vector<std::string> unmet_requirements(const Attention& attention, std::int64_t begin,
                                                            std::int64_t end, bool exact) const;
  /// Those of them that do not lie in the rows: empty when it serves some rows of the attention.
  [[nodiscard]] std::vector<std::string> unmet_by_attention(const Attention& attention) const;
  /// Whether none of them lies in the rows: asked for every request of a step, and answered without texts.
  [[nodiscard]] virtual bool serves_rows(const Attention& attention, std::int64_t begin, std::int64_t end,
                                         bool exact) const = 0;
  /// @param query_slice  rows at once, >= 1
  [[nodiscard]] virtual Work count_work(const Attention& attention, std::int64_t begin, std::int64_t end,
                                        std::int64_t query_slice) const = 0;
  /// Bytes of workspace with a given blocking.
  [[nodiscard]] virtual std::int64_t workspace_bytes(const Attention& attention, const Extents& extents,
                                                     const Blocking& blocking) const = 0;
  /// How many of them are for what it makes of a selection, if a call leaves all of that there; else 0.
  [[nodiscard]] virtual std::int64_t kept_bytes(const Attention& /*attention*/, const Extents& /*extents*/,
                                                const Blocking& /*blocking*/) const {
    return 0;
  }
  /// Bytes that its tables take on a GPU at most, for plans whose sizes are within `extents` and that have `budget`
  /// bytes of workspace.
  [[nodiscard]] virtual std::int64_t table_bound(const Attention& /*attention*/, const Extents& /*extents*/,
                                                 std::int64_t /*budget*/) const {
    return 0;
  }
  /// The blocking that does the least work within `budget` bytes, or, when none fits, the one that takes the least.
  [[nodiscard]] virtual Blocking choose_blocking(const Attention& attention, const Extents& extents,
                                                 std::int64_t budget) const = 0;

 protected:
  PathAlgorithm() = default;
  PathAlgorithm(const PathAlgorithm&) = default;
  PathAlgorithm& operator=(const PathAlgorithm&) = default;
  PathAlgorithm(PathAlgorithm&&) = default;
  PathAlgorithm& operator=(PathAlgorithm&&) = default;

 private:
  [[nodiscard]] virtual Support support() const = 0;
  /// Reasons that lie in the dimensions.
  [[nodiscard]] virtual std::vector<std::string> unmet_by_geometry(const Geometry& geometry) const = 0;
  /// Reasons that lie in the rows themselves: none where serves_rows.
  [[nodiscard]] virtual std::vector<std::string> unmet_by_rows(const Attention& attention, std::int64_t begin,
                                                               std::int64_t end, bool exact) const = 0;
};

/// An algorithm of the processor, with its sequence of steps.
class CpuPath : public PathAlgorithm {
 public:
  /// Attention for the rows; `arena` holds at least workspace_bytes.
  virtual void run(const Call& call, std::span<const Rows> rows, Arena arena) const = 0;
};

/// Plain causal attention over up-projected keys. Needs proof that the selection covers every row; never reads it.
[[nodiscard]] const CpuPath& dense_mha();
/// Attention over up-projected keys under a bit mask made from the selection. Serves every row.
[[nodiscard]] const CpuPath& masked_mha();
/// Absorbs the up-projection into the query, attends to the selected latents, and projects the result. Serves every
/// row.
[[nodiscard]] const CpuPath& topk_mqa();

/// The algorithm behind a path on the processor.
[[nodiscard]] const CpuPath& cpu_path(Path path);
/// The algorithm behind a path on the GPU (cuda_path.h); with a library built without CUDA there is no device to ask
/// for it.
[[nodiscard]] const PathAlgorithm& cuda_path(Path path);
/// The algorithm behind a path on a device.
[[nodiscard]] const PathAlgorithm& algorithm_of(Path path, const Device& device);

/// The first of the rows [begin, end) that nothing proves covered, which dense_mha therefore does not serve; none where
/// all are.
[[nodiscard]] std::optional<std::int64_t> first_uncovered(const SelectionRule& rule, std::int64_t begin,
                                                          std::int64_t end, bool exact) noexcept;
/// That as a reason against dense_mha.
[[nodiscard]] std::vector<std::string> uncovered_rows(const SelectionRule& rule, std::int64_t begin, std::int64_t end,
                                                      bool exact);

/// The work of dense_mha on any device; masked_mha adds its masks.
[[nodiscard]] Work count_mha_work(const Attention& attention, std::int64_t begin, std::int64_t end,
                                  std::int64_t query_slice);

}  // namespace headrace::attention
