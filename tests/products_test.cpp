// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "device/bf16_products.h"
#include "device/tile_products.h"

namespace headrace::device {
namespace {

using Matrix = std::vector<float>;

struct Sizes {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
};

/// Random sizes and values; every test says its seed when it fails.
class Products : public testing::Test {
 protected:
  Products() : seed_(std::random_device()()), random_(seed_) {}
  void SetUp() override { RecordProperty("seed", std::to_string(seed_)); }

  Sizes sizes(std::int64_t most) {
    const auto below = [&] { return 1 + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most)); };
    return {below(), below(), below()};
  }
  /// Values that bfloat16 holds exactly.
  Matrix matrix(std::int64_t rows, std::int64_t columns) {
    Matrix values(static_cast<std::size_t>(rows * columns));
    for (float& value : values) {
      value = static_cast<float>(bfloat16(normal_(random_)));
    }
    return values;
  }
  static std::vector<bfloat16> narrow(const Matrix& values) {
    std::vector<bfloat16> narrowed;
    for (const float value : values) {
      narrowed.emplace_back(value);
    }
    return narrowed;
  }
  /// a [m, k] times b [n, k] transposed, in double.
  static double dot(const Matrix& a, std::int64_t m, const Matrix& b, std::int64_t n, std::int64_t k) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < k; ++i) {
      sum += static_cast<double>(a[static_cast<std::size_t>(m * k + i)]) *
             static_cast<double>(b[static_cast<std::size_t>(n * k + i)]);
    }
    return sum;
  }
  static double tolerance(std::int64_t k) { return 2e-6 * std::sqrt(static_cast<double>(k)) * 4.0; }
  static Matrix transpose(const Matrix& values, std::int64_t rows, std::int64_t columns) {
    Matrix result(values.size());
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        result[static_cast<std::size_t>(c * rows + r)] = values[static_cast<std::size_t>(r * columns + c)];
      }
    }
    return result;
  }

  std::uint64_t seed_;
  std::mt19937_64 random_;
  std::normal_distribution<float> normal_;
};

TEST_F(Products, FloatTilesMatchDouble) {
  for (int round = 0; round < 300; ++round) {
    const Sizes s = sizes(90);
    const Matrix a = matrix(s.m, s.k);
    const Matrix b = matrix(s.n, s.k);
    const Matrix b_transposed = transpose(b, s.n, s.k);
    Matrix nt(static_cast<std::size_t>(s.m * s.n), 7.0F);
    Matrix nt_added(nt);
    Matrix nn_added(nt);
    products_nt(s.m, s.n, s.k, a.data(), s.k, b.data(), s.k, nt.data(), s.n);
    products_nt(s.m, s.n, s.k, a.data(), s.k, b.data(), s.k, nt_added.data(), s.n, Update::add);
    products_nn_add(s.m, s.n, s.k, a.data(), s.k, b_transposed.data(), s.n, nn_added.data(), s.n);
    for (std::int64_t m = 0; m < s.m; ++m) {
      for (std::int64_t n = 0; n < s.n; ++n) {
        const double expected = dot(a, m, b, n, s.k);
        const auto at = static_cast<std::size_t>(m * s.n + n);
        ASSERT_NEAR(nt[at], expected, tolerance(s.k)) << "seed " << seed_;
        ASSERT_NEAR(nt_added[at], expected + 7.0, tolerance(s.k)) << "seed " << seed_;
        ASSERT_NEAR(nn_added[at], expected + 7.0, tolerance(s.k)) << "seed " << seed_;
      }
    }
  }
}

TEST_F(Products, PairTilesMatchDouble) {
  if (!has_bf16_products()) {
    GTEST_SKIP() << "this CPU has no AVX512_BF16";
  }
  for (int round = 0; round < 300; ++round) {
    const Sizes s = sizes(90);
    const std::int64_t even = (s.k + 1) / 2 * 2;
    const std::int64_t columns = s.n + static_cast<std::int64_t>(random_() % 5);
    const Matrix a = matrix(s.m, s.k);
    const Matrix b = matrix(s.n, s.k);
    std::vector<bfloat16> a_rows(static_cast<std::size_t>(s.m * even));
    for (std::int64_t m = 0; m < s.m; ++m) {
      for (std::int64_t k = 0; k < s.k; ++k) {
        a_rows[static_cast<std::size_t>(m * even + k)] = bfloat16(a[static_cast<std::size_t>(m * s.k + k)]);
      }
    }
    std::vector<bfloat16> from_rows(static_cast<std::size_t>(packed_pairs(s.k, columns)));
    pack_pairs_transposed(s.k, s.n, narrow(b).data(), s.k, columns, from_rows.data());
    std::vector<bfloat16> from_columns(static_cast<std::size_t>(packed_pairs(s.k, s.n)));
    pack_pairs(s.k, s.n, narrow(transpose(b, s.n, s.k)).data(), s.n, from_columns.data());
    Matrix one(static_cast<std::size_t>(s.m * s.n), 3.0F);
    Matrix other(one);
    bf16_products_add(s.m, s.n, even, a_rows.data(), even, from_rows.data(), columns, one.data(), s.n);
    bf16_products_add(s.m, s.n, even, a_rows.data(), even, from_columns.data(), s.n, other.data(), s.n);
    ASSERT_EQ(one, other) << "seed " << seed_;
    for (std::int64_t m = 0; m < s.m; ++m) {
      for (std::int64_t n = 0; n < s.n; ++n) {
        ASSERT_NEAR(one[static_cast<std::size_t>(m * s.n + n)], dot(a, m, b, n, s.k) + 3.0, tolerance(s.k))
            << "seed " << seed_;
      }
    }
  }
}

/// An element's bits must not depend on the rows computed beside it, or a request's answer would depend on its batch.
TEST_F(Products, RowsDoNotDependOnTheirNeighbours) {
  constexpr std::int64_t kRows = 70;
  constexpr std::int64_t kColumns = 77;
  constexpr std::int64_t kInner = 66;
  const Matrix a = matrix(kRows, kInner);
  const Matrix b = matrix(kInner, kColumns);
  Matrix all(kRows * kColumns, 0.0F);
  products_nn_add(kRows, kColumns, kInner, a.data(), kInner, b.data(), kColumns, all.data(), kColumns);
  for (std::int64_t first = 0; first < kRows; first += 3) {
    Matrix some(static_cast<std::size_t>(2 * kColumns), 0.0F);
    const std::int64_t rows = std::min<std::int64_t>(2, kRows - first);
    products_nn_add(rows, kColumns, kInner, a.data() + first * kInner, kInner, b.data(), kColumns, some.data(),
                    kColumns);
    for (std::int64_t i = 0; i < rows * kColumns; ++i) {
      ASSERT_EQ(some[static_cast<std::size_t>(i)], all[static_cast<std::size_t>(first * kColumns + i)])
          << "seed " << seed_;
    }
  }
}

}  // namespace
}  // namespace headrace::device
