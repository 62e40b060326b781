// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

namespace headrace::test {

/// A small seeded generator (splitmix64; Steele, Lea and Flood 2014): the same numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t bits() noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, n), n >= 1.
  std::int64_t below(std::int64_t n) noexcept {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(n));
  }
  /// Uniform in [0, 1).
  double uniform() noexcept { return std::ldexp(static_cast<double>(bits() >> 11), -53); }
  bool chance(double probability) noexcept { return uniform() < probability; }
  /// Nearly normal with mean 0 and variance 1: the sum of four uniform 16-bit numbers. Cheap, for weights by the
  /// million.
  float normal() noexcept {
    const std::uint64_t b = bits();
    const auto sum = static_cast<double>((b & 0xffffU) + ((b >> 16) & 0xffffU) + ((b >> 32) & 0xffffU) + (b >> 48));
    constexpr double kSpread = 37837.2;  // sqrt(4 / 12) * 65536
    return static_cast<float>((sum - 2.0 * 65535.0) / kSpread);
  }

 private:
  std::uint64_t state_;
};

/// A seed nobody chose, for tests that print it. HEADRACE_TEST_SEED overrides it.
std::uint64_t fresh_seed();

}  // namespace headrace::test
