// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headrace/view.h"

namespace headrace::layer {

/// 64 random bits that depend on the three numbers alone: any part of a stream can be computed anywhere, in any order.
/// This is SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) read at
/// position `counter`, from a start that seed and stream are hashed to.
[[nodiscard]] std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) noexcept;

/// Fills a contiguous float32 or bfloat16 view with nearly normal numbers of mean 0 and the given standard deviation.
/// The same seed and stream give the same values on every machine and for every number of threads: a value is the sum
/// of eight uniform 16-bit integers (excess kurtosis -0.15, never beyond 4.9 standard deviations), exact until the one
/// multiplication by `stddev`; there is no call of a mathematical library in it. Element i takes counters 2i and 2i
/// + 1.
/// @throws Error when the view is not contiguous, or of another dtype
void fill_normal(AnyView out, std::uint64_t seed, std::uint64_t stream, double stddev, int threads);

}  // namespace headrace::layer
