// SPDX-License-Identifier: Apache-2.0
#include "layer/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "headrace/error.h"
#include "support/random.h"

namespace headrace {
namespace {

using layer::RopeFrequencies;
using layer::RopeTable;

/// DeepSeek-V3.2's rope.
Rope deepseek_rope() {
  Rope rope;
  rope.dim = 64;
  rope.theta = 10000.0;
  Yarn yarn;
  yarn.factor = 40.0;
  yarn.original_max_position_embeddings = 4096;
  yarn.mscale = 1.0;
  yarn.mscale_all_dim = 1.0;
  rope.yarn = yarn;
  return rope;
}

void expect_frequency(const RopeFrequencies& frequencies, std::size_t pair, double expected) {
  EXPECT_NEAR(frequencies.inverse.at(pair), expected, 1e-13 * expected) << "pair " << pair;
}

TEST(RopeFrequencies, PlainIsAGeometricSeries) {
  Rope rope;
  rope.dim = 8;
  rope.theta = 10000.0;
  const RopeFrequencies frequencies = layer::rope_frequencies(rope);
  ASSERT_EQ(frequencies.inverse.size(), 4U);
  expect_frequency(frequencies, 0, 1.0);
  expect_frequency(frequencies, 1, 0.1);
  expect_frequency(frequencies, 2, 0.01);
  expect_frequency(frequencies, 3, 0.001);
  EXPECT_EQ(frequencies.attention_factor, 1.0);
}

// The literals of the YaRN tests were computed in 40-digit decimal arithmetic from the paper's formulas. The ramp of
// DeepSeek-V3.2's rope runs from pair 10.4722... to pair 22.5134..., truncated from 10 to 23.
TEST(RopeFrequencies, YarnOfDeepSeek) {
  const RopeFrequencies frequencies = layer::rope_frequencies(deepseek_rope());
  ASSERT_EQ(frequencies.inverse.size(), 32U);
  expect_frequency(frequencies, 0, 1.0);
  expect_frequency(frequencies, 5, 0.23713737056616552);
  expect_frequency(frequencies, 10, 0.056234132519034911);
  expect_frequency(frequencies, 11, 0.039006926567143857);
  expect_frequency(frequencies, 16, 0.0055);
  expect_frequency(frequencies, 22, 0.00017782794100389227);
  expect_frequency(frequencies, 23, 3.3338035804083099e-05);
  expect_frequency(frequencies, 31, 3.3338035804083101e-06);
  EXPECT_EQ(frequencies.attention_factor, 1.0);
}

TEST(RopeFrequencies, YarnWithoutTruncation) {
  Rope rope = deepseek_rope();
  rope.yarn->truncate = false;
  const RopeFrequencies frequencies = layer::rope_frequencies(rope);
  expect_frequency(frequencies, 10, 0.056234132519034911);
  expect_frequency(frequencies, 11, 0.04036758449441142);
  expect_frequency(frequencies, 16, 0.0055240629774682649);
  expect_frequency(frequencies, 22, 0.00011838773159168905);
  expect_frequency(frequencies, 23, 3.3338035804083099e-05);
}

TEST(RopeFrequencies, YarnAttentionFactor) {
  Rope rope = deepseek_rope();
  const auto factor = [&] { return layer::rope_frequencies(rope).attention_factor; };
  rope.yarn->mscale_all_dim = 0.5;
  EXPECT_NEAR(factor(), 1.155721990196260885, 1e-14);
  rope.yarn->mscale_all_dim = 0.0;  // a zero counts as absent
  EXPECT_NEAR(factor(), 1.368887945411393630, 1e-14);
  rope.yarn->mscale_all_dim.reset();
  EXPECT_NEAR(factor(), 1.368887945411393630, 1e-14);
  rope.yarn->attention_factor = 1.25;
  EXPECT_EQ(factor(), 1.25);
  rope.yarn->attention_factor.reset();
  rope.yarn->factor = 1.0;
  EXPECT_EQ(factor(), 1.0);
}

TEST(RopeFrequencies, YarnRampOfNoWidthStaysFinite) {
  Rope rope = deepseek_rope();
  rope.yarn->truncate = false;
  rope.yarn->beta_slow = rope.yarn->beta_fast;
  const RopeFrequencies frequencies = layer::rope_frequencies(rope);
  expect_frequency(frequencies, 10, 0.056234132519034911);                    // 10 < 10.47: as it was
  expect_frequency(frequencies, 11, std::pow(10000.0, -22.0 / 64.0) / 40.0);  // 11 > 10.47: divided
}

/// Rows of heads inside wider rows, so that a write beyond the rope dims shows.
template <class T>
struct Heads {
  static constexpr std::int64_t kTokens = 9;
  static constexpr std::int64_t kHeads = 3;
  static constexpr std::int64_t kBefore = 5;
  static constexpr std::int64_t kWidth = 32;
  std::vector<T> data = std::vector<T>(kTokens * kHeads * kWidth);

  explicit Heads(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    std::generate(data.begin(), data.end(), [&] { return T(normal(random)); });
  }
  View<T> rope_part(std::int64_t dim) {
    return View<T>(data.data() + kBefore, 3, {kTokens, kHeads, dim}, {kHeads * kWidth, kWidth, 1});
  }
};

template <class T>
void check_rotation(bool interleave, double tolerance) {
  using H = Heads<T>;
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rope rope = deepseek_rope();
  rope.dim = 20;
  rope.yarn->attention_factor = 1.25;
  const std::vector<std::int32_t> positions = {0, 1, 2, 77, 4096, 999999, 1000000, 1048575, 2147483647};
  const RopeFrequencies frequencies = layer::rope_frequencies(rope);
  H before(seed);
  H after = before;
  const RopeTable table(rope, View<const std::int32_t>(positions.data(), {H::kTokens}), 2);
  table.rotate(after.rope_part(rope.dim), interleave, 2);

  const auto in = before.rope_part(rope.dim);
  const auto out = after.rope_part(rope.dim);
  for (std::int64_t t = 0; t < H::kTokens; ++t) {
    for (std::int64_t h = 0; h < H::kHeads; ++h) {
      for (std::int64_t i = 0; i < rope.dim / 2; ++i) {
        const std::int64_t first = interleave ? 2 * i : i;
        const std::int64_t second = interleave ? 2 * i + 1 : i + rope.dim / 2;
        const std::complex<double> pair(static_cast<float>(in(t, h, first)), static_cast<float>(in(t, h, second)));
        const double angle = positions[static_cast<std::size_t>(t)] * frequencies.inverse[static_cast<std::size_t>(i)];
        const std::complex<double> expected = pair * std::polar(1.25, angle);
        const double slack = 4e-7 * std::abs(pair);
        EXPECT_NEAR(static_cast<float>(out(t, h, first)), expected.real(),
                    tolerance * std::abs(expected.real()) + slack);
        EXPECT_NEAR(static_cast<float>(out(t, h, second)), expected.imag(),
                    tolerance * std::abs(expected.imag()) + slack);
      }
    }
  }
  for (std::size_t at = 0; at < before.data.size(); ++at) {
    const auto column = static_cast<std::int64_t>(at) % H::kWidth;
    if (column < H::kBefore || column >= H::kBefore + rope.dim) {
      EXPECT_EQ(static_cast<float>(before.data[at]), static_cast<float>(after.data[at])) << "outside, at " << at;
    }
  }
}

TEST(RopeTable, RotatesInterleavedPairs) { check_rotation<float>(true, 0.0); }
TEST(RopeTable, RotatesHalfSplitPairs) { check_rotation<float>(false, 0.0); }
// Half a unit in the last place of bfloat16: rounded once.
TEST(RopeTable, RotatesInterleavedBfloat16) { check_rotation<bfloat16>(true, 0x1p-8); }
TEST(RopeTable, RotatesHalfSplitBfloat16) { check_rotation<bfloat16>(false, 0x1p-8); }

TEST(RopeTable, ProductsDependOnTheDistanceAloneAtAMillion) {
  Rope rope;
  rope.dim = 64;
  const std::vector<std::int32_t> positions = {1000000, 999993, 7, 0};
  std::vector<float> x(4 * 64);
  for (std::size_t i = 0; i < 64; ++i) {
    x[i] = x[2 * 64 + i] = std::sin(static_cast<float>(3 * i + 1));
    x[64 + i] = x[3 * 64 + i] = std::cos(static_cast<float>(5 * i + 2));
  }
  const RopeTable table(rope, View<const std::int32_t>(positions.data(), {4}), 1);
  table.rotate(View<float>(x.data(), {4, 1, 64}), true, 1);
  const auto product = [&](std::size_t row) {
    double sum = 0.0;
    for (std::size_t i = 0; i < 64; ++i) {
      sum += static_cast<double>(x[row * 64 + i]) * x[(row + 1) * 64 + i];
    }
    return sum;
  };
  EXPECT_NEAR(product(0), product(2), 1e-5);
}

TEST(RopeTable, NoTokens) {
  const RopeTable table(deepseek_rope(), View<const std::int32_t>(nullptr, {0}), 2);
  table.rotate(View<float>(nullptr, {0, 3, 64}), true, 2);
}

TEST(RopeTable, RefusesWhatDoesNotFit) {
  const std::vector<std::int32_t> positions = {0, 1};
  const RopeTable table(deepseek_rope(), View<const std::int32_t>(positions.data(), {2}), 1);
  std::vector<float> x(2 * 128);
  EXPECT_THROW(table.rotate(View<float>(x.data(), {2, 1, 62}), true, 1), Error);
  EXPECT_THROW(table.rotate(View<float>(x.data(), {1, 1, 64}), true, 1), Error);
  EXPECT_THROW(table.rotate(View<float>(x.data(), 3, {2, 1, 64}, {128, 128, 2}), true, 1), Error);
  EXPECT_THROW(table.rotate(View<std::int32_t>(nullptr, {2, 1, 64}), true, 1), Error);
}

}  // namespace
}  // namespace headrace
