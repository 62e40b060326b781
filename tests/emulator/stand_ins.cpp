// SPDX-License-Identifier: Apache-2.0
//
// What the emulator does not run, as plain loops, so that attend can be tried from end to end around it: the products
// of cuBLASLt, and the flash-attention kernel, whose copy engine and products are not modelled.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/mha/sm90.h"
#include "device/cuda/products.h"
#include "headrace/error.h"
#include "launch.h"

namespace headrace::device::cuda {

struct ProductLibrary::State {};

ProductLibrary::ProductLibrary() = default;
ProductLibrary::~ProductLibrary() = default;

struct Product::State {
  ProductShape shape;
};

Product::Product(const ProductLibrary& /*library*/, const ProductShape& shape)
    : state_(std::make_unique<State>(State{shape})) {}
Product::~Product() = default;
Product::Product(Product&&) noexcept = default;

void Product::warm_up(Stream /*stream*/) const {}

/// As if sums were split: what lies there must be the product's alone.
std::int64_t Product::workspace_bytes() const noexcept { return state_->shape.split_sums ? 1000 : 0; }

namespace {

void multiply(const ProductShape& shape, View<const bfloat16> a, View<const bfloat16> b, AnyView c) {
  a.expect("a", {-1, shape.batch, shape.inner});
  c.expect("c", {a.dim(0), shape.batch, shape.columns});
  std::vector<float> right(static_cast<std::size_t>(shape.inner * shape.columns));
  std::vector<float> sum(static_cast<std::size_t>(shape.columns));
  for (std::int64_t g = 0; g < shape.batch; ++g) {
    for (std::int64_t k = 0; k < shape.inner; ++k) {
      for (std::int64_t n = 0; n < shape.columns; ++n) {
        right[static_cast<std::size_t>(k * shape.columns + n)] =
            static_cast<float>(shape.b_transposed ? b(g, n, k) : b(g, k, n));
      }
    }
    for (std::int64_t row = 0; row < a.dim(0); ++row) {
      std::ranges::fill(sum, 0.0F);
      for (std::int64_t k = 0; k < shape.inner; ++k) {
        const auto left = static_cast<float>(a(row, g, k));
        const float* values = right.data() + k * shape.columns;
        for (std::size_t n = 0; n < sum.size(); ++n) {
          sum[n] += left * values[n];
        }
      }
      const std::int64_t at = row * c.stride(0) + g * c.stride(1);
      for (std::size_t n = 0; n < sum.size(); ++n) {
        if (shape.out == DType::float32) {
          static_cast<float*>(c.data())[at + static_cast<std::int64_t>(n)] = sum[n];
        } else {
          static_cast<bfloat16*>(c.data())[at + static_cast<std::int64_t>(n)] = bfloat16(sum[n]);
        }
      }
    }
  }
}

}  // namespace

void Product::run(View<const bfloat16> a, View<const bfloat16> b, AnyView c, std::span<std::byte> workspace,
                  Stream stream) const {
  const std::int64_t bytes = workspace_bytes();
  if (static_cast<std::int64_t>(workspace.size()) < bytes) {
    throw Error("product workspace", "at least " + std::to_string(bytes) + " bytes", std::to_string(workspace.size()));
  }
  emulator::queue(static_cast<cudaStream_t>(stream.handle), [shape = state_->shape, a, b, c, workspace, bytes] {
    multiply(shape, a, b, c);
    std::ranges::fill(workspace.first(static_cast<std::size_t>(bytes)), std::byte{0xff});
  });
}

}  // namespace headrace::device::cuda

namespace headrace::attention::mha::sm90 {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

const bfloat16* row_of(const HeadMatrix& m, std::int64_t row, std::int64_t head) {
  return static_cast<const bfloat16*>(m.data) + row * m.row_stride + head * m.head_stride;
}

double dot(const bfloat16* a, const bfloat16* b, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < n; ++i) {
    sum += static_cast<double>(static_cast<float>(a[i])) * static_cast<double>(static_cast<float>(b[i]));
  }
  return sum;
}

/// One query row of a pass, for every head.
class Row {
 public:
  Row(const Pass& pass, const RequestSpan& span, std::int32_t request, std::int64_t number)
      : pass_(pass), span_(span), number_(number) {
    const std::int32_t seq_len = pass.seq_len[request];
    const cache::RequestRows row =
        rows_of(span, cache::request_rows(pass.query_start[request], pass.query_start[request + 1], seq_len,
                                          cache::as_length(pass.query.rows)))
            .slice(static_cast<std::int32_t>(number), 1);
    exists_ = row.count() > 0;
    token_ = row.token();
    keys_ = std::max(0, std::min(span.keys_end, cache::request_keys(seq_len)) - span.keys_begin);
    if (pass.causal) {
      keys_ = std::clamp<std::int64_t>(std::int64_t{row.begin} + 1 - span.keys_begin, 0, keys_);
    }
  }

  [[nodiscard]] bool exists() const noexcept { return exists_; }

  void attend(std::int64_t head) const {
    const Geometry& g = pass_.geometry;
    const bfloat16* q = row_of(pass_.query, token_, head);
    std::vector<double> weights(static_cast<std::size_t>(keys_), kNothing);
    double highest = kNothing;
    for (std::int64_t key = 0; key < keys_; ++key) {
      if (selected(key)) {
        double score = dot(q, row_of(pass_.key_nope, span_.first_key + key, head), g.qk_nope_head_dim);
        if (g.qk_rope_head_dim > 0) {
          score += dot(q + g.qk_nope_head_dim, row_of(pass_.key_rope, span_.first_key + key, head), g.qk_rope_head_dim);
        }
        weights[static_cast<std::size_t>(key)] = score * static_cast<double>(pass_.scale);
        highest = std::max(highest, weights[static_cast<std::size_t>(key)]);
      }
    }
    std::vector<double> out(static_cast<std::size_t>(g.v_head_dim));
    double sum = 0.0;
    for (std::int64_t key = 0; key < keys_; ++key) {
      const double weight = highest == kNothing ? 0.0 : std::exp(weights[static_cast<std::size_t>(key)] - highest);
      if (weight > 0.0) {
        sum += weight;
        const bfloat16* value = row_of(pass_.value, span_.first_key + key, head);
        for (std::size_t i = 0; i < out.size(); ++i) {
          out[i] += weight * static_cast<double>(static_cast<float>(value[i]));
        }
      }
    }
    store(head, out, sum, highest == kNothing ? kNothing : highest + std::log(sum));
  }

 private:
  [[nodiscard]] bool selected(std::int64_t key) const {
    if (pass_.mask == nullptr) {
      return true;
    }
    const std::int64_t tile = key / key_tile(pass_.geometry);
    const std::int64_t column = key % key_tile(pass_.geometry);
    const std::uint32_t word = pass_.mask[(tile * pass_.mask_rows + slice_row()) * kMaskWords + column % 8 / 2];
    return (word >> (2 * (column / 8) + column % 2) & 1U) != 0;
  }

  /// Merges with what earlier passes gave, by their log-sum-exps.
  void store(std::int64_t head, const std::vector<double>& out, double sum, double lse) const {
    const std::int64_t row = slice_row() * pass_.geometry.num_heads + head;
    const double earlier = pass_.earlier == nullptr ? kNothing : static_cast<double>(pass_.earlier_lse[row]);
    const double high = std::max(lse, earlier);
    const bool empty = high == kNothing;
    const double total = empty ? 1.0 : std::exp(lse - high) + std::exp(earlier - high);
    const double merged = empty ? kNothing : high + std::log(total);
    const double sink = pass_.sink == nullptr || empty ? 0.0 : std::exp(static_cast<double>(pass_.sink[head]) - merged);
    const double share = lse == kNothing ? 0.0 : std::exp(lse - high) / (sum * total * (1.0 + sink));
    const double earlier_share = earlier == kNothing ? 0.0 : std::exp(earlier - high) / (total * (1.0 + sink));
    const std::int64_t to = pass_.to_slice ? slice_row() : token_;
    if (pass_.lse != nullptr) {
      pass_.lse[to * pass_.lse_row_stride + head] = static_cast<float>(merged);
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto column = static_cast<std::int64_t>(i);
      const double before =
          earlier_share == 0.0 ? 0.0 : static_cast<double>(pass_.earlier[row * pass_.geometry.v_head_dim + column]);
      const auto value = static_cast<float>(out[i] * share + before * earlier_share);
      const std::int64_t at = to * pass_.out_row_stride + head * pass_.out_head_stride + column;
      if (pass_.out_float32) {
        static_cast<float*>(pass_.out)[at] = value;
      } else {
        static_cast<bfloat16*>(pass_.out)[at] = bfloat16(value);
      }
    }
  }

  [[nodiscard]] std::int64_t slice_row() const noexcept { return span_.first_slice_row + number_; }

  const Pass& pass_;
  const RequestSpan& span_;
  std::int64_t number_;
  std::int64_t token_ = 0;
  std::int64_t keys_ = 0;
  bool exists_ = false;
};

void attend(const Pass& pass) {
  for (std::int64_t t = 0; t < pass.num_tiles; ++t) {
    const QueryTile tile = pass.tiles[t];
    for (std::int64_t i = 0; i < kQueryTile; ++i) {
      const Row row(pass, pass.spans[tile.request], tile.request, tile.tile * kQueryTile + i);
      for (std::int64_t head = 0; row.exists() && head < pass.geometry.num_heads; ++head) {
        row.attend(head);
      }
    }
  }
}

}  // namespace

void load(const Geometry& /*geometry*/) {}

void launch(const Pass& pass, int /*multiprocessors*/, Stream stream) {
  if (!pass.counter_is_clear) {
    emulator::queue(static_cast<cudaStream_t>(stream.handle), [pass] { *pass.counter = 0; });
  }
  emulator::queue(static_cast<cudaStream_t>(stream.handle), [pass] {
    // Blocks take their tiles from the counter, which is left behind full.
    if (*pass.counter != 0) {
      throw Error("counter", "0", std::to_string(*pass.counter));
    }
    attend(pass);
    *pass.counter = static_cast<std::int32_t>(pass.num_tiles);
  });
}

}  // namespace headrace::attention::mha::sm90
