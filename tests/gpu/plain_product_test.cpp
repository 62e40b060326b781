// SPDX-License-Identifier: Apache-2.0
//
// Products of matrices that lie anyhow against sums in double.
#include "device/cuda/plain_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "headrace/dtype.h"
#include "support/random.h"

namespace headrace::test {
namespace {

using device::cuda::DeviceArray;
using device::cuda::PlainMatrix;

/// Where the elements of some matrices lie: dims in any order, with gaps, from an odd address on.
struct Layout {
  std::array<std::int64_t, 3> strides{};  ///< batch, row, column
  std::int64_t elements = 0;
  std::int64_t first = 0;

  Layout(Random& random, const std::array<std::int64_t, 3>& dims) {
    std::array<std::size_t, 3> order{0, 1, 2};
    std::swap(order[0], order[static_cast<std::size_t>(random.below(3))]);
    std::int64_t step = 1 + random.below(3);
    for (const std::size_t dim : order) {
      strides[dim] = step;
      step = step * dims[dim] + random.below(4);
    }
    first = random.below(5);
    elements = first + step;
  }
  [[nodiscard]] std::size_t at(std::int64_t g, std::int64_t i, std::int64_t j) const {
    return static_cast<std::size_t>(first + g * strides[0] + i * strides[1] + j * strides[2]);
  }
  template <class T>
  [[nodiscard]] PlainMatrix in(const DeviceArray<T>& memory) const {
    return {memory.data() + first, strides[0], strides[1], strides[2]};
  }
};

std::vector<bfloat16> random_values(Random& random, std::int64_t count) {
  std::vector<bfloat16> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.emplace_back(random.normal());
  }
  return values;
}

template <class T>
void expect_sums(Random& random, std::int64_t rows) {
  constexpr float kUnwritten = -77.0F;
  const std::int64_t columns = 1 + random.below(150);
  const std::int64_t inner = 1 + random.below(70);
  const std::int64_t batch = 1 + random.below(3);
  SCOPED_TRACE(testing::Message() << rows << " x " << inner << " x " << columns << ", " << batch << " of them");
  const Layout of_a(random, {batch, rows, inner});
  const Layout of_b(random, {batch, inner, columns});
  const Layout of_c(random, {batch, rows, columns});
  const std::vector<bfloat16> a = random_values(random, of_a.elements);
  const std::vector<bfloat16> b = random_values(random, of_b.elements);
  const DeviceArray<bfloat16> a_there(a);
  const DeviceArray<bfloat16> b_there(b);
  const DeviceArray<T> c_there(std::vector<T>(static_cast<std::size_t>(of_c.elements), T(kUnwritten)));
  device::cuda::run({.rows = rows,
                     .columns = columns,
                     .inner = inner,
                     .batch = batch,
                     .a = of_a.in(a_there),
                     .b = of_b.in(b_there),
                     .c = of_c.in(c_there),
                     .out = sizeof(T) == sizeof(float) ? DType::float32 : DType::bfloat16},
                    Stream{});
  device::cuda::synchronize(Stream{});
  std::vector<T> c = c_there.download();
  for (std::int64_t g = 0; g < batch; ++g) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        double sum = 0.0;
        double magnitude = 0.0;
        for (std::int64_t k = 0; k < inner; ++k) {
          const double term = static_cast<double>(static_cast<float>(a[of_a.at(g, i, k)])) *
                              static_cast<double>(static_cast<float>(b[of_b.at(g, k, j)]));
          sum += term;
          magnitude += std::abs(term);
        }
        const double rounding = sizeof(T) == sizeof(float) ? 0.0 : std::ldexp(std::abs(sum), -8);
        const double additions = static_cast<double>(inner) * std::ldexp(magnitude, -23);
        T& got = c[of_c.at(g, i, j)];
        ASSERT_NEAR(static_cast<double>(static_cast<float>(got)), sum, rounding + 1.01 * additions + 1e-30)
            << "row " << i << ", column " << j << ", matrix " << g;
        got = T(kUnwritten);
      }
    }
  }
  ASSERT_TRUE(std::ranges::all_of(c, [](T value) { return static_cast<float>(value) == kUnwritten; }))
      << "something else was written";
}

TEST(GpuPlainProduct, IsTheSumOfItsTerms) {
  const std::uint64_t seed = fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  for (const std::int64_t rows : {0, 1, 2, 63, 64, 65, 130}) {
    expect_sums<bfloat16>(random, rows);
    expect_sums<float>(random, rows);
    if (testing::Test::HasFatalFailure()) {
      return;
    }
  }
}

}  // namespace
}  // namespace headrace::test
