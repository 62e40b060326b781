// SPDX-License-Identifier: Apache-2.0
// Products through cuBLASLt against sums in double, and the products with kv_b_proj.
#include "device/cuda/products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "attention/project_cuda.h"
#include "captured_graph.h"
#include "device/cuda/memory.h"
#include "device/cuda/tensor.h"
#include "headrace/tensor.h"
#include "layer/random.h"
#include "support/errors.h"
#include "support/random.h"

namespace headrace {
namespace {

using device::cuda::DeviceArray;
using device::cuda::DeviceBuffer;
using device::cuda::DeviceTensor;
using device::cuda::Product;
using device::cuda::ProductLibrary;
using device::cuda::ProductShape;

constexpr std::uint16_t kPoison = 0xa5a5;
/// At both ends of every range of rows that has an algorithm of its own.
constexpr std::int64_t kRows[] = {1, 3, 127, 128, 129, 1000, 1024, 1025, 2500};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

std::vector<bfloat16> random_matrix(test::Random& random, std::int64_t n) {
  std::vector<bfloat16> result;
  for (std::int64_t i = 0; i < n; ++i) {
    result.emplace_back(random.normal());
  }
  return result;
}

/// An exact sum and what rounding may make of it.
struct Sum {
  double value = 0.0;
  double magnitude = 0.0;  ///< of its terms together

  void add(bfloat16 a, bfloat16 b) {
    const double term = static_cast<double>(static_cast<float>(a)) * static_cast<double>(static_cast<float>(b));
    value += term;
    magnitude += std::abs(term);
  }
  /// Every one of n additions in float32, even if they truncate, errs by at most 2^-22 of the magnitude; then one
  /// rounding to the output's dtype.
  [[nodiscard]] double tolerance(std::int64_t n, DType out) const {
    const double rounding = out == DType::bfloat16 ? std::ldexp(std::abs(value), -8) : 0.0;
    return rounding + 1.01 * static_cast<double>(n) * std::ldexp(magnitude, -22) + 1e-30;
  }
};

// ---- any product ----------------------------------------------------------------------------------------------------

/// Memory for products of one stream.
class Scratch {
 public:
  explicit Scratch(std::int64_t bytes) : memory_(bytes) {}
  [[nodiscard]] std::span<std::byte> span() const {
    return {memory_.data(), static_cast<std::size_t>(memory_.size_bytes())};
  }

 private:
  device::cuda::DeviceBuffer memory_;
};

/// Where operands lie: strides larger than they need to be.
struct Gaps {
  std::int64_t a = 0;
  std::int64_t b = 0;
  std::int64_t c = 0;
};

template <class T>
void product_case(const ProductLibrary& library, const ProductShape& shape, const Gaps& gaps, test::Random& random) {
  const Product product(library, shape);
  const std::int64_t b_rows = shape.b_transposed ? shape.columns : shape.inner;
  const std::int64_t b_columns = shape.b_transposed ? shape.inner : shape.columns;
  const std::int64_t a_row = shape.batch * shape.inner + gaps.a;
  const std::int64_t b_row = b_columns + gaps.b;
  const std::int64_t b_batch = b_rows * b_row + gaps.b;
  const std::int64_t c_row = shape.batch * shape.columns + gaps.c;
  const std::vector<bfloat16> b = random_matrix(random, shape.batch * b_batch);
  const DeviceArray<bfloat16> device_b(b);
  const device::cuda::OwnedStream stream;
  const Scratch scratch(product.workspace_bytes());
  for (const std::int64_t rows : kRows) {
    const std::vector<bfloat16> a = random_matrix(random, rows * a_row);
    const DeviceArray<bfloat16> device_a(a);
    const DeviceArray<T> device_c(rows * c_row);
    device_c.bytes().fill(std::byte{0xa5});
    product.run(View<const bfloat16>(device_a.data(), 3, {rows, shape.batch, shape.inner}, {a_row, shape.inner, 1}),
                View<const bfloat16>(device_b.data(), 3, {shape.batch, b_rows, b_columns}, {b_batch, b_row, 1}),
                View<T>(device_c.data(), 3, {rows, shape.batch, shape.columns}, {c_row, shape.columns, 1}),
                scratch.span(), stream);
    device::cuda::synchronize(stream);
    const std::vector<T> c = device_c.download();
    T poison;
    std::fill_n(reinterpret_cast<std::byte*>(&poison), sizeof poison, std::byte{0xa5});
    for (std::int64_t m = 0; m < rows; m = m < 4 || m + 3 > rows ? m + 1 : m + 1 + random.below(rows / 8 + 1)) {
      for (std::int64_t g = 0; g < shape.batch; ++g) {
        for (std::int64_t n = 0; n < shape.columns; ++n) {
          Sum sum;
          for (std::int64_t k = 0; k < shape.inner; ++k) {
            sum.add(a[at(m * a_row + g * shape.inner + k)],
                    b[at(g * b_batch + (shape.b_transposed ? n * b_row + k : k * b_row + n))]);
          }
          const auto got = static_cast<double>(static_cast<float>(c[at(m * c_row + g * shape.columns + n)]));
          ASSERT_LE(std::abs(got - sum.value), sum.tolerance(shape.inner, shape.out))
              << got << " for " << sum.value << " in row " << m << " of " << rows << ", batch entry " << g
              << ", column " << n;
        }
      }
      for (std::int64_t n = shape.batch * shape.columns; n < c_row; ++n) {
        ASSERT_EQ(std::memcmp(&c[at(m * c_row + n)], &poison, sizeof poison), 0) << "row " << m << ", column " << n;
      }
    }
  }
}

TEST(GpuProduct, IsTheSumOfItsTerms) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  const ProductLibrary library;
  for (const bool transposed : {false, true}) {
    for (const std::int64_t batch : {1, 5}) {
      // The last one's operands do not suit cuBLASLt.
      for (const Gaps& gap : {Gaps{}, Gaps{16, 8, 24}, Gaps{3, 5, 7}}) {
        const ProductShape shape{.columns = 8 * (1 + random.below(30)),
                                 .inner = 8 * (1 + random.below(70)),
                                 .batch = batch,
                                 .b_transposed = transposed};
        ProductShape wide = shape;
        wide.out = DType::float32;
        SCOPED_TRACE(std::to_string(shape.columns) + " columns, inner " + std::to_string(shape.inner) + ", batch " +
                     std::to_string(batch) + (transposed ? ", transposed" : ""));
        product_case<bfloat16>(library, shape, gap, random);
        product_case<float>(library, wide, gap, random);
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

TEST(GpuProduct, OfNoRowsDoesNothing) {
  const ProductLibrary library;
  const Product product(library, {.columns = 8, .inner = 8});
  EXPECT_NO_THROW(product.run(View<const bfloat16>(nullptr, {0, 1, 8}), View<const bfloat16>(nullptr, {1, 8, 8}),
                              View<bfloat16>(nullptr, {0, 1, 8}), {}, Stream{}));
}

TEST(GpuProduct, WithoutSplitSumsTakesNoMoreThanACounter) {
  const ProductLibrary library;
  const Product whole(library, {.columns = 512, .inner = 2048, .b_transposed = true, .split_sums = false});
  EXPECT_LE(whole.workspace_bytes(), 256);
}

/// Algorithms differ by numbers of rows, and so the company of a row: the sums of the row must not.
TEST(GpuProduct, BitsOfWholeSumsDoNotDependOnTheNumberOfRows) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  const ProductLibrary library;
  struct Case {
    ProductShape shape;
    const char* name;
  };
  const Case cases[] = {
      {{.columns = 16 * 448, .inner = 512, .b_transposed = true, .split_sums = false}, "up-projection, 16 heads"},
      {{.columns = 8 * 512, .inner = 512, .b_transposed = true, .split_sums = false}, "up-projection, 8 heads"},
      {{.columns = 512, .inner = 192, .batch = 16, .split_sums = false}, "absorption"},
      {{.columns = 256, .inner = 512, .batch = 16, .b_transposed = true, .split_sums = false}, "values"},
      {{.columns = 128, .inner = 512, .batch = 5, .b_transposed = true, .out = DType::float32, .split_sums = false},
       "values in float32"},
  };
  constexpr std::int64_t kMost = 2100;
  for (const auto& [shape, name] : cases) {
    SCOPED_TRACE(name);
    const Product product(library, shape);
    Tensor host_a(DType::bfloat16, {kMost, shape.batch, shape.inner});
    Tensor host_b(DType::bfloat16, {shape.batch, shape.b_transposed ? shape.columns : shape.inner,
                                    shape.b_transposed ? shape.inner : shape.columns});
    layer::fill_normal(host_a.view(), seed, 1, 1.0, 1);
    layer::fill_normal(host_b.view(), seed, 2, 1.0, 1);
    const DeviceTensor a(host_a.view());
    const DeviceTensor b(host_b.view());
    const DeviceTensor c(shape.out, {kMost, shape.batch, shape.columns});
    const DeviceBuffer workspace(product.workspace_bytes());
    const auto run = [&](std::int64_t first, std::int64_t rows) {
      product.run(View<const bfloat16>(a.view_as<bfloat16>()).slice(first, first + rows),
                  View<const bfloat16>(b.view_as<bfloat16>()), c.view().slice(0, rows),
                  {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, Stream{});
      const Tensor result = c.download();
      const std::int64_t bytes = rows * shape.batch * shape.columns * size_of(shape.out);
      const auto* const begin = static_cast<const std::byte*>(result.data());
      return std::vector<std::byte>(begin, begin + bytes);
    };
    const std::vector<std::byte> together = run(0, kMost);
    const std::int64_t row_bytes = shape.batch * shape.columns * size_of(shape.out);
    for (const std::int64_t rows : {1, 2, 63, 64, 127, 128, 129, 500, 1023, 1024, 1025, 2000}) {
      const std::int64_t first = (7 * rows) % (kMost - rows);
      const std::vector<std::byte> apart = run(first, rows);
      ASSERT_TRUE(std::equal(apart.begin(), apart.end(), together.begin() + first * row_bytes))
          << rows << " rows from " << first;
    }
  }
}

TEST(GpuProduct, OfWhatItCannotDoIsRefused) {
  const ProductLibrary library;
  const auto make = [&](const ProductShape& shape) { return [&library, shape] { (void)Product(library, shape); }; };
  EXPECT_TRUE(test::throws_error(make({.columns = 12, .inner = 8}), "multiples of 8"));
  EXPECT_TRUE(test::throws_error(make({.columns = 8, .inner = 0}), "multiples of 8"));
  EXPECT_TRUE(test::throws_error(make({.columns = 8, .inner = 8, .batch = 0}), "a batch"));
  EXPECT_TRUE(test::throws_error(make({.columns = 8, .inner = 8, .out = DType::float16}), "float16"));

  const Product product(library, {.columns = 16, .inner = 8});
  const DeviceArray<bfloat16> memory(1024);
  const View<const bfloat16> a(memory.data(), {4, 1, 8});
  const View<const bfloat16> b(memory.data(), {1, 8, 16});
  const View<bfloat16> c(memory.data(), {4, 1, 16});
  const auto call = [&](View<const bfloat16> x, View<const bfloat16> y, AnyView z) {
    return [&product, x, y, z] { product.run(x, y, z, {}, Stream{}); };
  };
  EXPECT_TRUE(test::throws_error(call({memory.data(), {4, 1, 16}}, b, c), "product a"));
  EXPECT_TRUE(test::throws_error(call(a, {memory.data(), {1, 16, 8}}, c), "product b"));
  EXPECT_TRUE(test::throws_error(call(a, b, View<bfloat16>(memory.data(), {5, 1, 16})), "product c"));
  EXPECT_TRUE(test::throws_error(call(a, b, View<float>(nullptr, {4, 1, 16})), "product c"));
}

/// Rows whose results lie beyond 2^32 elements.
TEST(GpuProduct, PassesFourGigaElements) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  constexpr std::int64_t kRowCount = 600'000;
  constexpr std::int64_t kColumns = 8192;
  constexpr std::int64_t kInner = 64;
  const ProductLibrary library;
  const Product product(library, {.columns = kColumns, .inner = kInner, .b_transposed = true});
  const std::vector<bfloat16> a = random_matrix(random, kRowCount * kInner);
  const std::vector<bfloat16> b = random_matrix(random, kColumns * kInner);
  const DeviceArray<bfloat16> device_a(a);
  const DeviceArray<bfloat16> device_b(b);
  const DeviceArray<bfloat16> device_c(kRowCount * kColumns);
  const Scratch scratch(product.workspace_bytes());
  const device::cuda::OwnedStream stream;
  product.run(View<const bfloat16>(device_a.data(), {kRowCount, 1, kInner}),
              View<const bfloat16>(device_b.data(), {1, kColumns, kInner}),
              View<bfloat16>(device_c.data(), {kRowCount, 1, kColumns}), scratch.span(), stream);
  device::cuda::synchronize(stream);
  std::vector<bfloat16> row(at(kColumns));
  for (const std::int64_t m : {std::int64_t{0}, kRowCount / 2 + 7, kRowCount - 1}) {
    device_c.bytes().download(std::as_writable_bytes(std::span(row)), m * kColumns * 2);
    for (std::int64_t n = 0; n < kColumns; ++n) {
      Sum sum;
      for (std::int64_t k = 0; k < kInner; ++k) {
        sum.add(a[at(m * kInner + k)], b[at(n * kInner + k)]);
      }
      ASSERT_LE(std::abs(static_cast<double>(static_cast<float>(row[at(n)])) - sum.value),
                sum.tolerance(kInner, DType::bfloat16))
          << "row " << m << ", column " << n;
    }
  }
}

TEST(GpuProduct, ReplaysFromAGraphWithTheSameBits) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  const ProductLibrary library;
  const Product product(library, {.columns = 256, .inner = 512, .b_transposed = true});
  const device::cuda::OwnedStream stream;
  product.warm_up(stream);
  const Scratch scratch(product.workspace_bytes());
  for (const std::int64_t rows : {5, 700, 1500}) {
    const DeviceArray<bfloat16> a(rows * 512);
    const DeviceArray<bfloat16> b(random_matrix(random, 256 * 512));
    const DeviceArray<bfloat16> eager(rows * 256);
    const DeviceArray<bfloat16> replayed(rows * 256);
    const auto run = [&](const DeviceArray<bfloat16>& c, Stream on) {
      product.run(View<const bfloat16>(a.data(), {rows, 1, 512}), View<const bfloat16>(b.data(), {1, 256, 512}),
                  View<bfloat16>(c.data(), {rows, 1, 256}), scratch.span(), on);
    };
    a.bytes().fill(std::byte{0});
    const test::CapturedGraph graph([&](Stream on) { run(replayed, on); });
    a.upload(random_matrix(random, rows * 512));
    graph.replay();
    run(eager, stream);
    device::cuda::synchronize(stream);
    const std::vector<bfloat16> x = eager.download();
    const std::vector<bfloat16> y = replayed.download();
    EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size() * sizeof(bfloat16)), 0) << rows << " rows";
    EXPECT_NE(x.front().bits, 0) << "of a product of random numbers";
  }
}

// ---- kv_b_proj ------------------------------------------------------------------------------------------------------

constexpr Geometry kGeometry{3, 96, 64, 16, 40};

class GpuProjections : public testing::Test {
 protected:
  GpuProjections() : random_(seed_), projections_(library_, kGeometry) {
    weights_ = random_matrix(random_, kGeometry.num_heads * head_rows() * kGeometry.kv_lora_rank);
    device_weights_ = DeviceArray<bfloat16>(weights_);
  }
  static std::int64_t head_rows() { return kGeometry.qk_nope_head_dim + kGeometry.v_head_dim; }
  [[nodiscard]] View<const bfloat16> kv_b_proj() const {
    return {device_weights_.data(), {kGeometry.num_heads * head_rows(), kGeometry.kv_lora_rank}};
  }
  /// Entry of head h's part of kv_b_proj.
  [[nodiscard]] bfloat16 weight(std::int64_t head, std::int64_t row, std::int64_t r) const {
    return weights_[at((head * head_rows() + row) * kGeometry.kv_lora_rank + r)];
  }

  std::uint64_t seed_ = test::fresh_seed();
  testing::ScopedTrace trace_{__FILE__, __LINE__, "HEADRACE_TEST_SEED=" + std::to_string(seed_)};
  test::Random random_;
  ProductLibrary library_;
  attention::cuda::Projections projections_;
  Scratch scratch_{projections_.workspace_bytes()};
  device::cuda::OwnedStream stream_;
  std::vector<bfloat16> weights_;
  DeviceArray<bfloat16> device_weights_;
};

/// Expects c[t, h, i] to be the sum over k < inner of a[t, (h,) k] and weight(h, i, k).
void expect_products(const std::vector<bfloat16>& c, std::int64_t tokens, std::int64_t columns, std::int64_t inner,
                     const std::function<bfloat16(std::int64_t, std::int64_t, std::int64_t)>& a,
                     const std::function<bfloat16(std::int64_t, std::int64_t, std::int64_t)>& weight) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < kGeometry.num_heads; ++h) {
      for (std::int64_t i = 0; i < columns; ++i) {
        Sum sum;
        for (std::int64_t k = 0; k < inner; ++k) {
          sum.add(a(t, h, k), weight(h, i, k));
        }
        const auto got = static_cast<double>(static_cast<float>(c[at((t * kGeometry.num_heads + h) * columns + i)]));
        ASSERT_LE(std::abs(got - sum.value), sum.tolerance(inner, DType::bfloat16)) << t << ", " << h << ", " << i;
      }
    }
  }
}

TEST_F(GpuProjections, UpProject) {
  constexpr std::int64_t kTokens = 37;
  const std::int64_t rank = kGeometry.kv_lora_rank;
  const std::vector<bfloat16> latent = random_matrix(random_, kTokens * rank);
  const DeviceArray<bfloat16> device_latent(latent);
  const DeviceArray<bfloat16> up(kTokens * kGeometry.num_heads * head_rows());
  projections_.warm_up(stream_);
  projections_.up_project(View<const bfloat16>(device_latent.data(), {kTokens, rank}), kv_b_proj(),
                          View<bfloat16>(up.data(), {kTokens, kGeometry.num_heads, head_rows()}), scratch_.span(),
                          stream_);
  device::cuda::synchronize(stream_);
  expect_products(
      up.download(), kTokens, head_rows(), rank,
      [&](std::int64_t t, std::int64_t, std::int64_t k) { return latent[at(t * rank + k)]; },
      [&](std::int64_t h, std::int64_t i, std::int64_t k) { return weight(h, i, k); });
}

TEST_F(GpuProjections, AbsorbQuery) {
  constexpr std::int64_t kTokens = 37;
  const std::int64_t rank = kGeometry.kv_lora_rank;
  const std::int64_t heads = kGeometry.num_heads;
  const std::vector<bfloat16> q = random_matrix(random_, kTokens * heads * kGeometry.qk_head_dim());
  const DeviceArray<bfloat16> device_q(q);
  const std::int64_t width = rank + kGeometry.qk_rope_head_dim;
  const DeviceArray<bfloat16> query(kTokens * heads * width);
  query.bytes().fill(std::byte{0xa5});
  projections_.absorb_query(View<const bfloat16>(device_q.data(), {kTokens, heads, kGeometry.qk_head_dim()}),
                            kv_b_proj(), View<bfloat16>(query.data(), {kTokens, heads, width}), scratch_.span(),
                            stream_);
  device::cuda::synchronize(stream_);
  const std::vector<bfloat16> wide = query.download();
  std::vector<bfloat16> absorbed;
  for (std::int64_t row = 0; row < kTokens * heads; ++row) {
    absorbed.insert(absorbed.end(), wide.begin() + row * width, wide.begin() + row * width + rank);
    for (std::int64_t i = rank; i < width; ++i) {
      ASSERT_EQ(wide[at(row * width + i)].bits, kPoison) << "row " << row << ", column " << i;
    }
  }
  expect_products(
      absorbed, kTokens, rank, kGeometry.qk_nope_head_dim,
      [&](std::int64_t t, std::int64_t h, std::int64_t k) {
        return q[at((t * heads + h) * kGeometry.qk_head_dim() + k)];
      },
      [&](std::int64_t h, std::int64_t i, std::int64_t k) { return weight(h, k, i); });
}

TEST_F(GpuProjections, ProjectValues) {
  constexpr std::int64_t kTokens = 37;
  const std::int64_t rank = kGeometry.kv_lora_rank;
  const std::int64_t heads = kGeometry.num_heads;
  const std::vector<bfloat16> attended = random_matrix(random_, kTokens * heads * rank);
  const DeviceArray<bfloat16> device_attended(attended);
  const DeviceArray<bfloat16> out(kTokens * heads * kGeometry.v_head_dim);
  const DeviceArray<float> wide(kTokens * heads * kGeometry.v_head_dim);
  const View<const bfloat16> view(device_attended.data(), {kTokens, heads, rank});
  projections_.project_values(view, kv_b_proj(), View<bfloat16>(out.data(), {kTokens, heads, kGeometry.v_head_dim}),
                              scratch_.span(), stream_);
  projections_.project_values(view, kv_b_proj(), View<float>(wide.data(), {kTokens, heads, kGeometry.v_head_dim}),
                              scratch_.span(), stream_);
  device::cuda::synchronize(stream_);
  std::vector<bfloat16> narrowed;
  for (const float value : wide.download()) {
    narrowed.emplace_back(value);
  }
  for (const std::vector<bfloat16>& result : {out.download(), narrowed}) {
    expect_products(
        result, kTokens, kGeometry.v_head_dim, rank,
        [&](std::int64_t t, std::int64_t h, std::int64_t k) { return attended[at((t * heads + h) * rank + k)]; },
        [&](std::int64_t h, std::int64_t i, std::int64_t k) { return weight(h, kGeometry.qk_nope_head_dim + i, k); });
  }
}

}  // namespace
}  // namespace headrace
