// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headrace/attention.h"
#include "reference_layer.h"
#include "stages.h"
#include "step.h"

namespace headrace::app {

/// How far the stages around attention are from what they should be, each given what it was given: queries, latents and
/// rope keys from those of the float32 layer; the cache's bytes from what the format makes of those latents and rope
/// keys; the output from the float64 product of what attention gave and the output weights. Rounding to the compute
/// dtype is bounded there, whatever the data are; only attention makes large errors of small ones. Every row is
/// compared.
class StageErrors {
 public:
  /// @param reference  the layer in float32
  /// @param tolerance  the largest error that passes
  StageErrors(const Attention& attention, const ReferenceLayer& reference, double tolerance)
      : attention_(attention), reference_(reference), tolerance_(tolerance) {}

  /// The queries and the cache rows of a step of one request, after append.
  void add_appended(const AppendedStep& appended, const Step& step);
  /// A step's output.
  /// @param attended  [T, H, v], what attention gave
  /// @param out       [T, hidden]
  void add_output(const ConstAnyView& attended, const ConstAnyView& out, int threads);

  /// ||difference|| / ||row|| of the worst token's queries, over all heads.
  [[nodiscard]] double queries() const noexcept { return queries_; }
  /// The same of latents and of rope keys, whichever is worse, before they are stored.
  [[nodiscard]] double latents() const noexcept { return latents_; }
  /// Rows of the cache that are not, byte for byte, what the format makes of the token's latent and rope key.
  [[nodiscard]] std::int64_t wrong_cache_rows() const noexcept { return wrong_cache_rows_; }
  /// The same of the layer's output.
  [[nodiscard]] double output() const noexcept { return output_; }
  [[nodiscard]] double tolerance() const noexcept { return tolerance_; }

 private:
  void add_queries(const ConstAnyView& q, std::int64_t token, std::int64_t position);
  void add_latent(const AppendedStep& appended, std::int64_t token, std::int64_t position);
  void add_cache_row(const AppendedStep& appended, std::int64_t token, std::int64_t slot);

  Attention attention_;
  const ReferenceLayer& reference_;
  double tolerance_;
  double queries_ = 0.0;
  double latents_ = 0.0;
  std::int64_t wrong_cache_rows_ = 0;
  double output_ = 0.0;
};

/// What an fp8 cache's scale does to a prompt's latents and rope keys.
struct ScaleEffect {
  std::int64_t values = 0;
  std::int64_t nonzero = 0;
  std::int64_t saturated = 0;  ///< beyond 448 * scale
  std::int64_t zeroed = 0;     ///< not 0, and at most half of e4m3's smallest number times the scale
  double largest = 0.0;        ///< magnitude

  /// Of all values.
  [[nodiscard]] double saturated_share() const noexcept {
    return values == 0 ? 0.0 : static_cast<double>(saturated) / static_cast<double>(values);
  }
  /// Of those that are not 0.
  [[nodiscard]] double zeroed_share() const noexcept {
    return nonzero == 0 ? 0.0 : static_cast<double>(zeroed) / static_cast<double>(nonzero);
  }
  /// Whether the cache still holds the layer's values: every stage may be right, and the answer is wrong without that.
  [[nodiscard]] bool pass() const noexcept {
    return saturated_share() <= kMostSaturated && zeroed_share() <= kMostZeroed;
  }
  static constexpr double kMostSaturated = 0.01;
  static constexpr double kMostZeroed = 0.1;
};
[[nodiscard]] ScaleEffect scale_effect(const ReferenceLayer& reference, double scale);

}  // namespace headrace::app
