// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "gpu.h"
#include "headrace/cuda_indexer.h"
#include "on_device.h"
#include "support/index_cache_kit.h"
#include "support/random.h"

/// What the tests of the GPU's indexer share: steps on the device, the processor's selection, and the definition.
namespace headrace::test::select_kit {

using device::cuda::DeviceArray;
using Kit = IndexCacheKit<bfloat16>;
using Rows = std::vector<std::vector<std::int32_t>>;
using Scores = std::vector<std::vector<float>>;

constexpr std::int32_t kPoison = -12345;
constexpr std::int64_t kGuardBytes = 1024;  // after the workspace
constexpr std::int64_t kPlenty = std::int64_t{1} << 40;

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

inline IndexerGeometry geometry(std::int64_t heads, std::int64_t dim, std::int64_t topk) {
  IndexerGeometry indexer;
  indexer.num_heads = heads;
  indexer.head_dim = dim;
  indexer.topk = topk;
  return indexer;
}

inline IndexerGeometry pooled(IndexerGeometry indexer, std::int64_t pool, bool tail) {
  indexer.kpool = true;
  indexer.pool = pool;
  indexer.topk = (indexer.topk + pool - 1) / pool * pool;
  indexer.tail = tail;
  return indexer;
}

/// What a call is made with beside the step.
struct Options {
  std::int64_t workspace_bytes = kPlenty;  ///< cut down to what is useful
  std::vector<std::int64_t> scoring_begin;
  std::int64_t bound_above = 0;          ///< of longest_seq_len, above the longest
  std::vector<TokenRange> calls = {{}};  ///< the rows of one call after the other
  std::int64_t columns_above = 0;        ///< of the selection, above the rule's width
};

/// A step and the cache on the device.
class StepOnDevice {
 public:
  /// @param query_gap  values after each token's query
  StepOnDevice(Kit& kit, const Kit::Step& step, std::int64_t query_gap = 0)
      : indexer_(kit.indexer),
        cache_(kit.cache()),
        memory_(kit.memory),
        weight_(step.weight),
        requests_(step.requests),
        tokens_(step.tokens),
        query_stride_(indexer_.num_heads * indexer_.head_dim + query_gap),
        longest_(*std::max_element(step.seq_len.begin(), step.seq_len.end())) {
    std::vector<bfloat16> query(at(tokens_ * query_stride_), bfloat16(std::numeric_limits<float>::quiet_NaN()));
    for (std::int64_t t = 0; t < tokens_; ++t) {
      const std::int64_t n = query_stride_ - query_gap;
      std::copy_n(step.query.begin() + t * n, n, query.begin() + t * query_stride_);
    }
    query_ = DeviceArray<bfloat16>(query);
    cache_.data = reinterpret_cast<std::byte*>(memory_.data());
  }

  [[nodiscard]] IndexQueries queries() const {
    const std::int64_t dim = indexer_.head_dim;
    return {View<const bfloat16>(query_.data(), 3, {tokens_, indexer_.num_heads, dim, 0}, {query_stride_, dim, 1, 0}),
            View<const float>(weight_.data(), {tokens_, indexer_.num_heads})};
  }

  /// The rows of the selection, having checked that nothing but its own columns was written.
  [[nodiscard]] Rows select(const Options& options = {}) const {
    const std::int64_t width = indexer_.rule().width() + options.columns_above;
    const std::int64_t stride = width + 2;
    const std::int64_t bound = longest_ + options.bound_above;
    const DeviceArray<std::int32_t> index(std::vector<std::int32_t>(at(tokens_ * stride), kPoison));
    const DeviceArray<std::int32_t> count(std::vector<std::int32_t>(at(tokens_), kPoison));
    const DeviceArray<std::int64_t> begin(options.scoring_begin);
    const std::int64_t bytes =
        std::min(options.workspace_bytes, cuda_select_workspace(indexer_, tokens_, bound).useful);
    const DeviceArray<std::byte> workspace(bytes + kGuardBytes);
    workspace.bytes().fill(std::byte{0xff});
    const device::cuda::OwnedStream stream;
    for (const TokenRange& rows : options.calls) {
      headrace::select(indexer_, cache_, queries(), requests_.get(),
                       options.scoring_begin.empty() ? View<const std::int64_t>()
                                                     : View<const std::int64_t>(begin.data(), {begin.size()}),
                       bound, View<std::int32_t>(index.data(), 2, {tokens_, width, 0, 0}, {stride, 1, 0, 0}),
                       View<std::int32_t>(count.data(), {tokens_}), std::span(workspace.data(), at(bytes)), *gpu(),
                       stream, rows);
    }
    device::cuda::synchronize(stream);
    const std::vector<std::byte> used = workspace.download();
    EXPECT_TRUE(std::all_of(used.begin() + bytes, used.end(), [](std::byte x) { return x == std::byte{0xff}; }));
    return rows_of(index.download(), count.download(), width, stride);
  }

  /// The scores, cut to what each row sees, having checked that nothing else was written.
  [[nodiscard]] Scores scores(const Kit::Step& step) const {
    const std::int64_t pool = indexer_.kpool ? indexer_.pool : 1;
    const std::int64_t columns = longest_ / pool + 3;
    const DeviceArray<float> memory(std::vector<float>(at(tokens_ * columns), static_cast<float>(kPoison)));
    const device::cuda::OwnedStream stream;
    score_rows(indexer_, cache_, queries(), requests_.get(), longest_, View<float>(memory.data(), {tokens_, columns}),
               *gpu(), stream);
    device::cuda::synchronize(stream);
    const std::vector<float> all = memory.download();
    Scores scores(at(tokens_));
    for (std::size_t b = 0; b + 1 < step.query_start.size(); ++b) {
      for (std::int64_t t = step.query_start[b]; t < step.query_start[b + 1]; ++t) {
        const std::int64_t seen = (step.seq_len[b] - (step.query_start[b + 1] - t) + 1) / pool;
        const auto row = all.begin() + t * columns;
        scores[at(t)].assign(row, row + seen);
        EXPECT_TRUE(std::all_of(row + seen, row + columns, [](float x) { return x == static_cast<float>(kPoison); }));
      }
    }
    return scores;
  }

 private:
  [[nodiscard]] Rows rows_of(const std::vector<std::int32_t>& index, const std::vector<std::int32_t>& count,
                             std::int64_t width, std::int64_t stride) const {
    Rows rows;
    for (std::int64_t t = 0; t < tokens_; ++t) {
      const std::int32_t n = count[at(t)];
      EXPECT_TRUE(n >= 0 && n <= width) << "token " << t << ", count " << n;
      const auto row = index.begin() + t * stride;
      const auto end = row + std::clamp<std::int64_t>(n, 0, width);
      EXPECT_TRUE(std::all_of(end, row + width, [](std::int32_t i) { return i == -1; })) << "token " << t;
      EXPECT_TRUE(std::all_of(row + width, row + stride, [](std::int32_t i) { return i == kPoison; })) << "token " << t;
      rows.emplace_back(row, end);
    }
    return rows;
  }

  IndexerGeometry indexer_;
  MutableCacheView cache_;
  DeviceArray<bfloat16> memory_;
  DeviceArray<bfloat16> query_;
  DeviceArray<float> weight_;
  RequestsOnDevice requests_;
  std::int64_t tokens_;
  std::int64_t query_stride_;
  std::int64_t longest_;
};

/// The processor's selection.
inline Rows cpu_rows(Kit& kit, const Kit::Step& step, const std::vector<std::int64_t>& scoring_begin = {}) {
  const std::int64_t width = kit.indexer.rule().width();
  std::vector<std::int32_t> index(at(step.tokens * width));
  std::vector<std::int32_t> count(at(step.tokens));
  const View<const std::int64_t> begin =
      scoring_begin.empty() ? View<const std::int64_t>()
                            : View<const std::int64_t>(scoring_begin.data(), {std::ssize(scoring_begin)});
  select(kit.indexer, DType::bfloat16, kit.cache(), kit.queries(step), step.requests, begin,
         View<std::int32_t>(index.data(), {step.tokens, width}), View<std::int32_t>(count.data(), {step.tokens}),
         kPlenty);
  Rows rows;
  for (std::int64_t t = 0; t < step.tokens; ++t) {
    rows.emplace_back(index.begin() + t * width, index.begin() + t * width + count[at(t)]);
  }
  return rows;
}

/// The selection of a row by definition, from given scores: sort, NaN last, take the best, spread pools, add the tail.
template <class Score>
std::vector<std::int32_t> best_row(const IndexerGeometry& g, const std::vector<Score>& scores, std::int64_t position) {
  const std::int64_t pool = g.kpool ? g.pool : 1;
  std::vector<std::int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    const Score x = scores[at(a)];
    const Score y = scores[at(b)];
    return std::isnan(y) ? !std::isnan(x) : x > y;
  });
  order.resize(std::min(order.size(), at(g.topk / pool)));
  std::vector<std::int32_t> row;
  for (const std::int64_t c : order) {
    for (std::int64_t o = 0; o < pool; ++o) {
      row.push_back(static_cast<std::int32_t>(c * pool + o));
    }
  }
  for (std::int64_t p = position + 1 - (position + 1) % pool; g.kpool && g.tail && p <= position; ++p) {
    row.push_back(static_cast<std::int32_t>(p));
  }
  std::sort(row.begin(), row.end());
  return row;
}

/// The score of a candidate in double from what the cache holds, and the sum of the magnitudes that went into it.
struct ExactScore {
  double value = 0;
  double magnitude = 0;
};

inline ExactScore exact_score(Kit& kit, std::size_t b, std::int64_t position, std::int64_t candidate) {
  const IndexerGeometry& g = kit.indexer;
  const std::int64_t pool = g.kpool ? g.pool : 1;
  const bfloat16* key = kit.row(b, (candidate + 1) * pool - 1);
  ExactScore score;
  for (std::int64_t h = 0; h < g.num_heads; ++h) {
    double product = 0;
    double magnitude = 0;
    for (std::int64_t d = 0; d < g.head_dim; ++d) {
      const bfloat16 q = kit.query[b][at((position * g.num_heads + h) * g.head_dim + d)];
      const double term = static_cast<double>(static_cast<float>(q)) * static_cast<double>(static_cast<float>(key[d]));
      product += term;
      magnitude += std::abs(term);
    }
    const double weight = kit.weight[b][at(position * g.num_heads + h)];
    score.value += weight * std::max(0.0, product);
    score.magnitude += std::abs(weight) * magnitude;
  }
  return score;
}

/// Calls body(request, token, position) for each row of a step.
template <class Body>
void for_rows(const Kit::Step& step, const Body& body) {
  for (std::size_t b = 0; b + 1 < step.query_start.size(); ++b) {
    for (std::int64_t t = step.query_start[b]; t < step.query_start[b + 1]; ++t) {
      body(b, t, step.seq_len[b] - (step.query_start[b + 1] - t));
    }
  }
}

/// Makes the steps of a test.
class SelectTest : public testing::Test {
 protected:
  /// Small whole numbers and equal gates: every score is exact in float32, and many are equal. For pools of 2^n.
  Kit exact_kit(const IndexerGeometry& indexer, std::vector<std::int64_t> seq_lens, const Kit::Layout& layout) {
    return Kit(
        indexer, std::move(seq_lens), layout, random_, [this] { return static_cast<float>(random_.below(5) - 2); },
        [] { return 0.0F; });
  }
  Kit normal_kit(const IndexerGeometry& indexer, std::vector<std::int64_t> seq_lens, const Kit::Layout& layout) {
    return Kit(
        indexer, std::move(seq_lens), layout, random_, [this] { return random_.normal(); },
        [this] { return random_.normal(); });
  }
  Kit::Layout random_layout() {
    const std::int64_t page_size = std::vector<std::int64_t>{1, 3, 64}[at(random_.below(3))];
    return random_.chance(0.5) ? Kit::Layout{page_size, 8 * random_.below(3), 8 * random_.below(3)}
                               : Kit::Layout{page_size, random_.below(6), random_.below(6)};
  }
  /// The step's tokens in parts, as ranks share them: some empty, the last one up to any token.
  std::vector<TokenRange> parts_of(std::int64_t tokens) {
    std::vector<TokenRange> parts{{}};
    for (std::int64_t n = random_.below(4); n > 0; --n) {
      const std::int64_t middle = parts.back().begin + random_.below(tokens - parts.back().begin + 1);
      parts.back().end = middle;
      parts.push_back({middle});
    }
    std::swap(parts.front(), parts.back());
    return parts;
  }
  static void expect_own_best(const Kit& kit, const Kit::Step& step, const Scores& scores, const Rows& rows) {
    for_rows(step, [&](std::size_t b, std::int64_t t, std::int64_t position) {
      ASSERT_EQ(rows[at(t)], best_row(kit.indexer, scores[at(t)], position))
          << "request " << b << ", position " << position;
    });
  }

  std::uint64_t seed_ = fresh_seed();
  Random random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
};

}  // namespace headrace::test::select_kit
