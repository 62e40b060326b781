// SPDX-License-Identifier: Apache-2.0
#include "layer/norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "headrace/error.h"
#include "support/random.h"

namespace headrace {
namespace {

constexpr std::int64_t kRows = 6;
constexpr std::int64_t kStride = 300;  // rows lie in wider ones

template <class T>
struct Case {
  std::int64_t n = 0;
  std::vector<T> x = std::vector<T>(kRows * kStride);
  std::vector<float> weight;
  std::vector<float> bias;

  /// Rows of ordinary, tiny and huge values, one with a mean far from 0, one constant and one of zeros.
  Case(std::int64_t size, std::uint64_t seed) : n(size) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    const float scale[kRows] = {1.0F, 1e-3F, 1e6F, 1.0F, 0.0F, 0.0F};
    const float center[kRows] = {0.0F, 0.0F, 0.0F, 1000.0F, 3.0F, 0.0F};
    for (std::int64_t at = 0; at < kRows * kStride; ++at) {
      x[static_cast<std::size_t>(at)] = T(center[at / kStride] + scale[at / kStride] * normal(random));
    }
    for (std::int64_t i = 0; i < n; ++i) {
      weight.push_back(1.0F + 0.1F * normal(random));
      bias.push_back(0.1F * normal(random));
    }
  }
  View<T> rows() { return View<T>(x.data(), 2, {kRows, n}, {kStride, 1}); }
  View<const float> weights() const { return View<const float>(weight.data(), {n}); }
  View<const float> biases() const { return View<const float>(bias.data(), {n}); }
};

/// The definition, in long double.
template <class T>
std::vector<double> reference(const Case<T>& c, std::int64_t row, bool center, double epsilon) {
  const auto value = [&](std::int64_t i) {
    return static_cast<long double>(static_cast<float>(c.x[static_cast<std::size_t>(row * kStride + i)]));
  };
  long double mean = 0.0L;
  for (std::int64_t i = 0; center && i < c.n; ++i) {
    mean += value(i) / static_cast<long double>(c.n);
  }
  long double variance = 0.0L;
  for (std::int64_t i = 0; i < c.n; ++i) {
    variance += (value(i) - mean) * (value(i) - mean) / static_cast<long double>(c.n);
  }
  std::vector<double> result;
  for (std::int64_t i = 0; i < c.n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const long double normal = (value(i) - mean) / std::sqrt(variance + static_cast<long double>(epsilon));
    result.push_back(static_cast<double>(normal * c.weight[at] + (center ? c.bias[at] : 0.0F)));
  }
  return result;
}

template <class T>
void check(bool center, std::int64_t n, double epsilon, double rounding) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed) + ", n " + std::to_string(n));
  const Case<T> before(n, seed);
  Case<T> after = before;
  if (center) {
    layer::layer_norm(after.rows(), after.weights(), after.biases(), epsilon, 2);
  } else {
    layer::rms_norm(after.rows(), after.weights(), epsilon, 2);
  }
  for (std::int64_t row = 0; row < kRows; ++row) {
    const std::vector<double> expected = reference(before, row, center, epsilon);
    for (std::int64_t i = 0; i < n; ++i) {
      const double want = expected[static_cast<std::size_t>(i)];
      EXPECT_NEAR(static_cast<float>(after.rows()(row, i)), want, rounding * std::abs(want) + 1e-12)
          << "row " << row << ", column " << i;
    }
    for (std::int64_t i = n; i < kStride; ++i) {
      const auto at = static_cast<std::size_t>(row * kStride + i);
      EXPECT_EQ(static_cast<float>(after.x[at]), static_cast<float>(before.x[at])) << "beyond row " << row;
    }
  }
}

// Half a unit in the last place: every value is rounded once.
constexpr double kFloatRounding = 0x1.01p-24;
constexpr double kBfloat16Rounding = 0x1.01p-8;

TEST(RmsNorm, IsTheDefinition) {
  for (const std::int64_t n : {1, 2, 7, 64, 255, 256}) {
    check<float>(false, n, 1e-6, kFloatRounding);
    check<float>(false, n, 1e-5, kFloatRounding);
    check<bfloat16>(false, n, 1e-6, kBfloat16Rounding);
  }
}

TEST(LayerNorm, IsTheDefinition) {
  for (const std::int64_t n : {1, 2, 7, 64, 255, 256}) {
    check<float>(true, n, 1e-6, kFloatRounding);
    check<bfloat16>(true, n, 1e-6, kBfloat16Rounding);
  }
}

TEST(RmsNorm, EpsilonRulesTinyRows) {
  std::vector<float> x = {1e-3F, -1e-3F};
  const std::vector<float> weight = {1.0F, 2.0F};
  layer::rms_norm(View<float>(x.data(), {1, 2}), View<const float>(weight.data(), {2}), 3e-6, 1);
  EXPECT_NEAR(x[0], 0.5, 1e-7);  // 1e-3 / sqrt(1e-6 + 3e-6)
  EXPECT_NEAR(x[1], -1.0, 1e-7);
}

TEST(Norm, NoRows) {
  const std::vector<float> weight = {1.0F, 1.0F};
  const View<const float> view(weight.data(), {2});
  layer::rms_norm(View<float>(nullptr, {0, 2}), view, 1e-6, 2);
  layer::layer_norm(View<bfloat16>(nullptr, {0, 2}), view, view, 1e-6, 2);
}

TEST(Norm, RefusesWhatDoesNotFit) {
  std::vector<float> x(12);
  const std::vector<float> weight(4, 1.0F);
  const View<const float> three(weight.data(), {3});
  const View<const float> four(weight.data(), {4});
  EXPECT_THROW(layer::rms_norm(View<float>(x.data(), {3, 4}), three, 1e-6, 1), Error);
  EXPECT_THROW(layer::rms_norm(View<float>(x.data(), {3, 4}).transposed(), three, 1e-6, 1), Error);
  EXPECT_THROW(layer::layer_norm(View<float>(x.data(), {3, 4}), four, three, 1e-6, 1), Error);
  EXPECT_THROW(layer::rms_norm(View<std::int32_t>(nullptr, {3, 4}), four, 1e-6, 1), Error);
}

}  // namespace
}  // namespace headrace
