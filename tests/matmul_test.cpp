// SPDX-License-Identifier: Apache-2.0
// Products of any size: right, and the same bits for a row whatever is computed beside it.
#include "device/matmul.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "device/tile_products.h"
#include "support/errors.h"
#include "support/random.h"

namespace headrace::device {
namespace {

using test::Random;

/// A matrix somewhere in memory that is NaN elsewhere: rows apart, and no alignment beyond the element's.
template <class T>
class Matrix {
 public:
  Matrix(std::int64_t rows, std::int64_t columns, Random& random)
      : rows_(rows), columns_(columns), ld_(columns + random.below(9)), begin_(random.below(17)) {
    memory_.assign(static_cast<std::size_t>(begin_ + rows * ld_), T(std::numeric_limits<float>::quiet_NaN()));
  }

  [[nodiscard]] View<T> view() { return View<T>(memory_.data() + begin_, 2, {rows_, columns_}, {ld_, 1}); }

  /// Whether everything around the matrix is still NaN.
  [[nodiscard]] bool intact() const {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(memory_.size()); ++i) {
      const bool inside = i >= begin_ && (i - begin_) % ld_ < columns_;
      if (!inside && !std::isnan(static_cast<float>(memory_[static_cast<std::size_t>(i)]))) {
        return false;
      }
    }
    return true;
  }

 private:
  std::int64_t rows_;
  std::int64_t columns_;
  std::int64_t ld_;
  std::int64_t begin_;
  std::vector<T> memory_;
};

/// What a and b hold, in float32.
struct Problem {
  std::int64_t m, n, k;
  std::vector<float> a;  // [m, k]
  std::vector<float> b;  // [n, k]

  /// Values that bfloat16 holds exactly.
  Problem(std::int64_t rows, std::int64_t columns, std::int64_t inner, Random& random) : m(rows), n(columns), k(inner) {
    a.resize(static_cast<std::size_t>(m * k));
    b.resize(static_cast<std::size_t>(n * k));
    for (auto* values : {&a, &b}) {
      for (float& value : *values) {
        value = static_cast<float>(bfloat16(random.normal()));
      }
    }
  }

  /// Sizes on both sides of what matmul cuts at: register tiles, the 64 columns and the depth of a panel, the rows of a
  /// task.
  static Problem random_sizes(Random& random) {
    constexpr std::int64_t kRows[] = {1, 2, 6, 7, 95, 97, 130, 1000};
    constexpr std::int64_t kColumns[] = {1, 15, 16, 63, 64, 65, 130};
    constexpr std::int64_t kInner[] = {1, 2, 7, 64, 191, 513, 1025, 1100};
    const std::int64_t rows = kRows[random.below(std::ssize(kRows))];
    const std::int64_t columns = kColumns[random.below(std::ssize(kColumns))];
    const std::int64_t inner = kInner[random.below(std::ssize(kInner))];
    return Problem(rows, columns, inner, random);
  }

  [[nodiscard]] float a_at(std::int64_t row, std::int64_t i) const { return a[static_cast<std::size_t>(row * k + i)]; }
  [[nodiscard]] float b_at(std::int64_t i, std::int64_t column) const {
    return b[static_cast<std::size_t>(column * k + i)];
  }
  [[nodiscard]] std::string text() const {
    return std::to_string(m) + " x " + std::to_string(k) + " x " + std::to_string(n);
  }
};

/// The product of some rows of a, in any order, with operands and result laid out at random: [rows, n], contiguous.
template <class In, class Out>
std::vector<Out> product(const Problem& p, const std::vector<std::int64_t>& rows, int threads, Random& random) {
  const auto count = std::ssize(rows);
  const bool transposed = random.chance(0.5);
  Matrix<In> a(count, p.k, random);
  Matrix<In> b(transposed ? p.n : p.k, transposed ? p.k : p.n, random);
  Matrix<Out> c(count, p.n, random);
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t i = 0; i < p.k; ++i) {
      a.view()(r, i) = In(p.a_at(rows[static_cast<std::size_t>(r)], i));
    }
  }
  const View<In> b_view = transposed ? b.view().transposed() : b.view();
  for (std::int64_t i = 0; i < p.k; ++i) {
    for (std::int64_t column = 0; column < p.n; ++column) {
      b_view(i, column) = In(p.b_at(i, column));
    }
  }
  matmul(View<const In>(a.view()), View<const In>(b_view), c.view(), threads);
  EXPECT_TRUE(c.intact()) << "written beside the result";
  std::vector<Out> result;
  for (std::int64_t r = 0; r < count; ++r) {
    result.insert(result.end(), c.view().at(r), c.view().at(r) + p.n);
  }
  return result;
}

/// Every element against its sum in float64.
template <class Out>
void expect_double(const Problem& p, const std::vector<Out>& c) {
  for (std::int64_t r = 0; r < p.m; ++r) {
    for (std::int64_t column = 0; column < p.n; ++column) {
      double sum = 0.0;
      double magnitude = 0.0;
      for (std::int64_t i = 0; i < p.k; ++i) {
        const double term = static_cast<double>(p.a_at(r, i)) * static_cast<double>(p.b_at(i, column));
        sum += term;
        magnitude += std::abs(term);
      }
      // k roundings (two a term without fused multiply-add) of partial sums, and the result's own.
      double tolerance = 2.0 * static_cast<double>(p.k) * magnitude * 0x1p-24;
      if (std::is_same_v<Out, bfloat16>) {
        tolerance += (std::abs(sum) + tolerance) * 0x1p-8;
      }
      ASSERT_NEAR(static_cast<double>(static_cast<float>(c[static_cast<std::size_t>(r * p.n + column)])), sum,
                  tolerance)
          << "row " << r << ", column " << column;
    }
  }
}

std::vector<std::int64_t> all_rows(const Problem& p) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(p.m));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

/// Calls body for each instruction set that Highway has code for and this machine can run.
template <class Body>
void on_each_target(const Body& body) {
  for (std::int64_t targets = hwy::SupportedTargets(); targets != 0; targets &= targets - 1) {
    hwy::SetSupportedTargetsForTest(targets);  // the best of those that are left
    SCOPED_TRACE(tile_products_target());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

template <class InType, class OutType>
struct Types {
  using In = InType;
  using Out = OutType;
};

template <class T>
class Matmul : public testing::Test {};
using AllTypes =
    testing::Types<Types<float, float>, Types<float, bfloat16>, Types<bfloat16, float>, Types<bfloat16, bfloat16>>;
TYPED_TEST_SUITE(Matmul, AllTypes);

TYPED_TEST(Matmul, MatchesDouble) {
  using Out = typename TypeParam::Out;
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  on_each_target([&] {
    for (int round = 0; round < 12; ++round) {
      const Problem p = Problem::random_sizes(random);
      SCOPED_TRACE(p.text());
      expect_double(p, product<typename TypeParam::In, Out>(p, all_rows(p), 2, random));
    }
  });
}

/// On one thread, so that nothing but a task's own bound cuts the rows.
TYPED_TEST(Matmul, MatchesDoubleWithMoreRowsThanATaskTakes) {
  using Out = typename TypeParam::Out;
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const Problem p(4000, 64, 70, random);
  on_each_target([&] { expect_double(p, product<typename TypeParam::In, Out>(p, all_rows(p), 1, random)); });
}

TYPED_TEST(Matmul, BitsOfARowAreAFunctionOfThatRowAndB) {
  using In = typename TypeParam::In;
  using Out = typename TypeParam::Out;
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  on_each_target([&] {
    for (int round = 0; round < 30; ++round) {
      const Problem p = Problem::random_sizes(random);
      SCOPED_TRACE(p.text());
      const std::vector<Out> whole = product<In, Out>(p, all_rows(p), 1, random);
      for (const std::int64_t most : {std::int64_t{1}, std::int64_t{9}, 2 * p.m}) {
        std::vector<std::int64_t> rows(static_cast<std::size_t>(1 + random.below(most)));
        std::ranges::generate(rows, [&] { return random.below(p.m); });
        const std::vector<Out> some = product<In, Out>(p, rows, 1 + static_cast<int>(random.below(3)), random);
        for (std::size_t r = 0; r < rows.size(); ++r) {
          ASSERT_EQ(std::memcmp(some.data() + static_cast<std::int64_t>(r) * p.n, whole.data() + rows[r] * p.n,
                                static_cast<std::size_t>(p.n) * sizeof(Out)),
                    0)
              << "row " << rows[r] << " as row " << r << " of " << rows.size();
        }
      }
    }
  });
}

TEST(MatmulSizes, MayBeZero) {
  const std::vector<float> values(6, 1.0F);
  std::vector<float> c(6, 7.0F);
  const auto view = [&](std::int64_t rows, std::int64_t columns) {
    return View<const float>(values.data(), {rows, columns});
  };
  matmul(view(0, 3), view(3, 2), View<float>(c.data(), {0, 2}), 2);
  matmul(view(2, 3), view(3, 0), View<float>(c.data(), {2, 0}), 2);
  EXPECT_EQ(c, std::vector<float>(6, 7.0F));
  matmul(view(2, 0), view(0, 3), View<float>(c.data(), {2, 3}), 2);
  EXPECT_EQ(c, std::vector<float>(6, 0.0F)) << "a sum of nothing";
}

TEST(MatmulRefuses, WhatDoesNotFit) {
  const std::vector<float> values(64, 1.0F);
  const std::vector<bfloat16> narrow(64);
  std::vector<float> c(64);
  const View<const float> square(values.data(), {4, 4});
  const View<const float> sparse(values.data(), 2, {4, 4}, {8, 2});
  const View<float> out(c.data(), {4, 4});
  const auto refuses = [](ConstAnyView a, ConstAnyView b, AnyView result, const std::string& part) {
    return test::throws_error([&] { matmul(a, b, result, 1); }, part);
  };
  EXPECT_TRUE(refuses(square, View<const float>(values.data(), {5, 4}), out, "matmul b"));
  EXPECT_TRUE(refuses(square, square, View<float>(c.data(), {4, 5}), "matmul c"));
  EXPECT_TRUE(refuses(square, View<const bfloat16>(narrow.data(), {4, 4}), out, "matmul b"));
  EXPECT_TRUE(refuses(square.transposed(), square, out, "contiguous rows"));
  EXPECT_TRUE(refuses(square, square, out.transposed(), "contiguous rows"));
  EXPECT_TRUE(refuses(square, sparse, out, "one unit stride"));
  const std::vector<std::int32_t> integers(16);
  const View<const std::int32_t> whole_numbers(integers.data(), {4, 4});
  EXPECT_TRUE(refuses(whole_numbers, whole_numbers, out, "float32 or bfloat16"));
}

}  // namespace
}  // namespace headrace::device
