// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "headrace/indexer.h"
#include "support/random.h"

namespace headrace::test {

/// Requests with given index keys, gates and queries that arrive in any number of steps, over a paged cache whose pages
/// are shuffled and whose unused bytes are all ones (NaN in float32 and bfloat16). T is the compute dtype.
template <class T>
class IndexCacheKit {
 public:
  struct Layout {
    std::int64_t page_size = 16;
    std::int64_t row_gap = 0;   ///< values between rows
    std::int64_t page_gap = 0;  ///< values between pages
  };
  /// Makes one value of a key, gate, query or weight.
  using Values = std::function<float()>;

  IndexCacheKit(const IndexerGeometry& geometry, std::vector<std::int64_t> seq_lens, const Layout& layout,
                Random& random, const Values& values, const Values& gates)
      : indexer(geometry), seq_len(std::move(seq_lens)), done(seq_len.size(), 0), layout_(layout) {
    for (const std::int64_t s : seq_len) {
      key.push_back(typed(s * indexer.head_dim, values));
      gate.push_back(typed(s * indexer.head_dim, gates));
      query.push_back(typed(s * indexer.num_heads * indexer.head_dim, values));
      weight.push_back(floats(s * indexer.num_heads, values));
    }
    bias = floats(indexer.pool * indexer.head_dim, gates);
    make_cache(random);
  }

  [[nodiscard]] MutableCacheView cache() {
    const std::int64_t row = row_values() + layout_.row_gap;
    const auto bytes = static_cast<std::int64_t>(sizeof(T));
    const std::int64_t page = layout_.page_size * row + layout_.page_gap;
    return {reinterpret_cast<std::byte*>(memory.data()), num_pages_, layout_.page_size, page * bytes, row * bytes};
  }
  [[nodiscard]] DType compute() const { return DTypeOf<T>::value; }
  [[nodiscard]] std::int64_t slot(std::size_t request, std::int64_t position) const {
    const auto page = static_cast<std::size_t>(position / layout_.page_size);
    return table[request * table_stride_ + page] * layout_.page_size + position % layout_.page_size;
  }
  /// The row of a position, [key, or key and gate].
  [[nodiscard]] T* row(std::size_t request, std::int64_t position) {
    return reinterpret_cast<T*>(cache().row(slot(request, position)));
  }
  [[nodiscard]] std::int64_t row_values() const { return indexer.head_dim * (indexer.kpool ? 2 : 1); }

  /// The inputs of one step that brings `query_len[b]` more tokens of each request.
  struct Step {
    std::vector<std::int32_t> query_start;
    std::vector<std::int32_t> seq_len;
    std::vector<T> key;
    std::vector<T> gate;
    std::vector<T> query;
    std::vector<float> weight;
    std::vector<std::int64_t> slots;
    std::int64_t tokens = 0;
    Requests requests;
  };

  [[nodiscard]] Step next(const std::vector<std::int64_t>& query_len) {
    Step step;
    step.query_start.push_back(0);
    for (std::size_t b = 0; b < seq_len.size(); ++b) {
      const std::int64_t begin = done[b];
      done[b] += query_len[b];
      step.tokens += query_len[b];
      step.query_start.push_back(static_cast<std::int32_t>(step.tokens));
      step.seq_len.push_back(static_cast<std::int32_t>(done[b]));
      copy(key[b], begin, done[b], indexer.head_dim, step.key);
      copy(gate[b], begin, done[b], indexer.head_dim, step.gate);
      copy(query[b], begin, done[b], indexer.num_heads * indexer.head_dim, step.query);
      copy(weight[b], begin, done[b], indexer.num_heads, step.weight);
      for (std::int64_t p = begin; p < done[b]; ++p) {
        step.slots.push_back(slot(b, p));
      }
    }
    const auto count = static_cast<std::int64_t>(seq_len.size());
    step.requests = {View<const std::int32_t>(step.query_start.data(), {count + 1}),
                     View<const std::int32_t>(step.seq_len.data(), {count}), block_table()};
    return step;
  }
  /// Some random query lengths, 0 included, of what has not come yet; never all 0.
  [[nodiscard]] std::vector<std::int64_t> some(Random& random, std::int64_t most) const {
    std::vector<std::int64_t> lens(seq_len.size(), 0);
    while (!finished() && std::accumulate(lens.begin(), lens.end(), std::int64_t{0}) == 0) {
      for (std::size_t b = 0; b < lens.size(); ++b) {
        lens[b] = std::min(seq_len[b] - done[b], random.below(most + 1));
      }
    }
    return lens;
  }
  [[nodiscard]] bool finished() const { return done == seq_len; }

  void append(const Step& step, int threads = 1) {
    append(step, View<const std::int64_t>(step.slots.data(), {step.tokens}), threads);
  }
  void append(const Step& step, View<const std::int64_t> slots, int threads = 1) {
    const View<const T> k(step.key.data(), {step.tokens, indexer.head_dim});
    const View<const T> g(step.gate.data(), {step.tokens, indexer.head_dim});
    const View<const float> b(bias.data(), {indexer.pool, indexer.head_dim});
    append_index_keys(indexer, compute(), cache(), k, indexer.kpool ? ConstAnyView(g) : ConstAnyView(),
                      indexer.kpool ? b : View<const float>(), step.requests, slots, threads);
  }
  [[nodiscard]] IndexQueries queries(const Step& step) const {
    return {View<const T>(step.query.data(), {step.tokens, indexer.num_heads, indexer.head_dim}),
            View<const float>(step.weight.data(), {step.tokens, indexer.num_heads})};
  }

  /// The key that candidate c of a request is scored by, in double from the inputs; for k-pool before rounding.
  [[nodiscard]] std::vector<double> candidate_key(std::size_t b, std::int64_t c) const {
    const auto dim = static_cast<std::size_t>(indexer.head_dim);
    const auto pool = static_cast<std::size_t>(indexer.kpool ? indexer.pool : 1);
    std::vector<double> result(dim);
    for (std::size_t d = 0; d < dim; ++d) {
      double total = 0;
      for (std::size_t o = 0; o < pool; ++o) {
        const std::size_t at = (static_cast<std::size_t>(c) * pool + o) * dim + d;
        const double logit =
            indexer.kpool ? static_cast<double>(static_cast<float>(gate[b][at])) + bias[o * dim + d] : 0.0;
        total += std::exp(logit);
        result[d] += std::exp(logit) * static_cast<double>(static_cast<float>(key[b][at]));
      }
      result[d] /= total;
    }
    return result;
  }

  IndexerGeometry indexer;
  std::vector<std::int64_t> seq_len;
  std::vector<std::int64_t> done;  ///< tokens that have come, of each request
  std::vector<std::vector<T>> key, gate, query;
  std::vector<std::vector<float>> weight;
  std::vector<float> bias;
  std::vector<T> memory;
  std::vector<std::int32_t> table;

 private:
  [[nodiscard]] static std::vector<float> floats(std::int64_t n, const Values& values) {
    std::vector<float> result(static_cast<std::size_t>(n));
    std::generate(result.begin(), result.end(), values);
    return result;
  }
  [[nodiscard]] static std::vector<T> typed(std::int64_t n, const Values& values) {
    const std::vector<float> source = floats(n, values);
    std::vector<T> result(source.size());
    std::transform(source.begin(), source.end(), result.begin(), [](float x) { return static_cast<T>(x); });
    return result;
  }
  template <class U>
  static void copy(const std::vector<U>& from, std::int64_t begin, std::int64_t end, std::int64_t width,
                   std::vector<U>& to) {
    to.insert(to.end(), from.begin() + begin * width, from.begin() + end * width);
  }
  [[nodiscard]] View<const std::int32_t> block_table() const {
    const auto count = static_cast<std::int64_t>(seq_len.size());
    const auto stride = static_cast<std::int64_t>(table_stride_);
    return View<const std::int32_t>(table.data(), 2, {count, stride - 1}, {stride, 1});
  }
  void make_cache(Random& random) {
    std::int64_t most_pages = 1;
    std::vector<std::int32_t> pages;
    for (const std::int64_t s : seq_len) {
      const std::int64_t n = (s + layout_.page_size - 1) / layout_.page_size;
      most_pages = std::max(most_pages, n);
      pages.resize(pages.size() + static_cast<std::size_t>(n));
    }
    num_pages_ = static_cast<std::int64_t>(pages.size()) + 3;
    std::vector<std::int32_t> shuffled(static_cast<std::size_t>(num_pages_));
    std::iota(shuffled.begin(), shuffled.end(), 0);
    for (std::size_t i = shuffled.size() - 1; i > 0; --i) {
      std::swap(shuffled[i], shuffled[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i) + 1))]);
    }
    table_stride_ = static_cast<std::size_t>(most_pages) + 2;
    table.assign(table_stride_ * seq_len.size(), std::numeric_limits<std::int32_t>::min());
    std::size_t used = 0;
    for (std::size_t b = 0; b < seq_len.size(); ++b) {
      for (std::int64_t i = 0; i * layout_.page_size < seq_len[b]; ++i) {
        table[b * table_stride_ + static_cast<std::size_t>(i)] = shuffled[used++];
      }
    }
    const std::int64_t row = row_values() + layout_.row_gap;
    memory.resize(static_cast<std::size_t>(num_pages_ * (layout_.page_size * row + layout_.page_gap)));
    std::fill_n(reinterpret_cast<std::uint8_t*>(memory.data()), memory.size() * sizeof(T), std::uint8_t{0xff});
  }

  Layout layout_;
  std::int64_t num_pages_ = 0;
  std::size_t table_stride_ = 0;
};

}  // namespace headrace::test
