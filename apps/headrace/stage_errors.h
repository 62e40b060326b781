// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "headrace/attention.h"
#include "reference_layer.h"
#include "stages.h"
#include "step.h"

namespace headrace::app {

/// How far the stages around attention are from what they should be, each given what it was given: the queries and the
/// cache from those of the float32 layer, the output from the float64 product of what attention gave and the output
/// weights. Rounding to the compute dtype and a cache format's own error are bounded there, whatever the data are; only
/// attention makes large errors of small ones.
class StageErrors {
 public:
  /// @param reference  the layer in float32
  /// @param tolerance  the largest error that passes
  StageErrors(const Attention& attention, const ReferenceLayer& reference, double tolerance)
      : attention_(attention), reference_(reference), tolerance_(tolerance) {}

  /// The queries and the cache rows of a step of one request, after append.
  void add_appended(const AppendedStep& appended, const Step& step);
  /// Rows of a step's output.
  /// @param attended  [T, H, v], what attention gave
  /// @param out       [T, hidden]
  void add_output(const ConstAnyView& attended, const ConstAnyView& out, const std::vector<std::int64_t>& rows,
                  int threads);

  /// ||difference|| / ||row|| of the worst token's queries, over all heads.
  [[nodiscard]] double queries() const noexcept { return queries_; }
  /// The same of latents and of rope keys, whichever is worse. Of a difference only what exceeds the format's own
  /// error counts: half the distance of two neighbours in the format, or what lies beyond its largest value.
  [[nodiscard]] double cache() const noexcept { return cache_; }
  /// The same of the layer's output.
  [[nodiscard]] double output() const noexcept { return output_; }
  [[nodiscard]] double tolerance() const noexcept { return tolerance_; }
  [[nodiscard]] bool pass() const noexcept {
    return queries_ <= tolerance_ && cache_ <= tolerance_ && output_ <= tolerance_;
  }

 private:
  void add_queries(const ConstAnyView& q, std::int64_t token, std::int64_t position);
  void add_cache_row(const CacheView& cache, std::int64_t slot, std::int64_t position);

  Attention attention_;
  const ReferenceLayer& reference_;
  double tolerance_;
  double queries_ = 0.0;
  double cache_ = 0.0;
  double output_ = 0.0;
};

/// What an fp8 cache's scale does to a prompt's latents and rope keys.
struct ScaleEffect {
  std::int64_t values = 0;
  std::int64_t saturated = 0;  ///< beyond 448 * scale
  std::int64_t zeroed = 0;     ///< not 0, and at most half of e4m3's smallest number times the scale
  double largest = 0.0;        ///< magnitude

  [[nodiscard]] double zeroed_share() const noexcept {
    return values == 0 ? 0.0 : static_cast<double>(zeroed) / static_cast<double>(values);
  }
};
[[nodiscard]] ScaleEffect scale_effect(const ReferenceLayer& reference, double scale);

/// The most that e4m3 with a scale may change a value: half the distance of its neighbours there, or what lies beyond
/// 448 * scale.
[[nodiscard]] double e4m3_error(double value, double scale) noexcept;
/// The most that bfloat16 may change a value.
[[nodiscard]] double bfloat16_error(double value) noexcept;

}  // namespace headrace::app
