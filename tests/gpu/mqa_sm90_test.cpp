// SPDX-License-Identifier: Apache-2.0
//
// The top-k MQA kernel by itself: lists, queries and a cache made up here, and what a launch writes, against sums in
// float64 over the same rounded inputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "attention/mqa/sm90.h"
#include "cache/row_codec.h"
#include "captured_graph.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "support/cache_rows.h"
#include "support/errors.h"
#include "support/random.h"

namespace headrace {
namespace {

namespace mqa = attention::mqa;
using device::cuda::DeviceArray;
using mqa::kKeyBlock;
using mqa::UnionTile;

constexpr int kCases = 25;
constexpr std::int64_t kRank = 512;
constexpr std::int64_t kRope = 64;
constexpr std::int64_t kHeads[] = {1, 2, 3, 4, 5, 8, 12, 16, 20, 24, 32, 33, 40, 63, 64, 65, 100, 128};
constexpr float kLatentScale = 0.02F;
const bfloat16 kNan(std::numeric_limits<float>::quiet_NaN());
constexpr float kUnwritten = -77.0F;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// A row of the batch, and what it attends to.
struct Row {
  std::int64_t token = 0;
  std::int64_t slot = 0;  ///< row of the queries and of what comes out
  std::vector<std::int64_t> keys;
};

/// Everything a launch takes, on the host: two requests, of which the second has one token.
class Problem {
 public:
  Problem(CacheFormat format, test::Random& random)
      : random_(random),
        format_(format),
        heads_(kHeads[random.below(std::size(kHeads))]),
        group_(mqa::group_of(heads_)),
        has_rope_(random.chance(0.5)),
        in_place_(random.chance(0.5)),
        rows_are_tokens_(random.chance(0.5)),
        in_chunks_(format != CacheFormat::float32 && random.chance(0.7)),
        geometry_{heads_, kRank, 128, has_rope_ ? kRope : 0, 128} {
    const std::int64_t tokens = 1 + random.below(std::max<std::int64_t>(3, 3 * group_));
    const std::int64_t context = random.below(260);
    query_len_ = {tokens, 1};
    seq_len_ = {tokens + context, 1 + context / 2};
    make_lists(0.02 + 0.1 * static_cast<double>(random.below(10)));
    make_cache();
    make_queries();
  }

  [[nodiscard]] std::string text() const {
    std::string text = "heads " + std::to_string(heads_) + ", tokens " + std::to_string(query_len_[0]) + ", keys " +
                       std::to_string(seq_len_[0]);
    const auto add = [&](bool is_so, const char* what) { text += is_so ? what : ""; };
    add(has_rope_, ", rope");
    add(in_place_, ", in place");
    add(!block_table_.empty(), ", paged");
    add(rows_are_tokens_, ", rows are tokens");
    add(in_chunks_, ", in chunks");
    add(!sink_.empty(), ", sinks");
    return text;
  }

  /// Replays a launch from a graph so many times, or launches once without, and compares what was written.
  void run_and_compare(int replays) {
    const std::int64_t offset = in_chunks_ ? 0 : unit() * random_.below(16 / unit());
    const DeviceArray<std::byte> cache(offset + static_cast<std::int64_t>(cache_.size()));
    cache.bytes().upload(cache_, offset);
    const DeviceArray<std::int32_t> block_table(block_table_);
    const DeviceArray<std::int64_t> first_row(first_row_);
    const DeviceArray<bfloat16> query(query_);
    const DeviceArray<bfloat16> query_rope(query_rope_);
    const DeviceArray<bfloat16> apart(attended_);
    const DeviceArray<float> lse(lse_);
    const DeviceArray<float> sink(sink_);
    std::vector<UnionTile> with_unsound = tiles_;
    with_unsound.back() = unsound_tile();
    const DeviceArray<UnionTile> tiles(with_unsound);
    const DeviceArray<std::int32_t> keys(list_);
    const DeviceArray<std::uint64_t> masks(masks_);
    const DeviceArray<std::int32_t> counter(std::vector<std::int32_t>{5});
    const DeviceArray<bfloat16>& attended = in_place_ ? query : apart;

    mqa::sm90::Pass pass;
    pass.heads = heads_;
    pass.tokens = query_len_[0] + query_len_[1];
    pass.requests = static_cast<std::int64_t>(query_len_.size());
    pass.has_rope = has_rope_;
    pass.scale = scale_;
    pass.query = query.data();
    pass.rows_are_tokens = rows_are_tokens_;
    pass.query_rope = query_rope.data();
    pass.query_rope_stride = rope_stride();
    pass.query_rope_head_stride = kRope;
    pass.keys.data = cache.data() + offset;
    pass.keys.row_stride = row_stride_;
    pass.keys.format = format_;
    pass.keys.scale = kLatentScale;
    if (!block_table_.empty()) {
      pass.keys.block_table = block_table.data();
      pass.keys.table_row_stride = table_stride_;
      pass.keys.table_stride = 1;
      pass.keys.table_width = table_width_;
      pass.keys.num_pages = num_pages_;
      pass.keys.page_size = page_size_;
      pass.keys.page_stride = page_stride_;
    } else {
      pass.keys.first_row = first_row.data();
      pass.keys.num_rows = num_rows_;
    }
    const auto count = static_cast<std::int64_t>(tiles_.size());
    pass.lists = {View<UnionTile>(tiles.data(), {count}), View<std::int32_t>(keys.data(), {count, capacity_}),
                  View<std::uint64_t>(masks.data(), {count, capacity_ / kKeyBlock, group_})};
    pass.attended = attended.data();
    pass.lse = lse.data();
    pass.lse_row_stride = heads_ + 1;
    pass.sink = sink_.empty() ? nullptr : sink.data();
    pass.counter = counter.data();

    const int multiprocessors = static_cast<int>(1 + random_.below(3));
    mqa::sm90::load();
    if (replays > 0) {
      const test::CapturedGraph graph([&](Stream s) { mqa::sm90::launch(pass, multiprocessors, s); });
      for (int i = 0; i < replays; ++i) {
        query.upload(query_);
        graph.replay();
      }
    } else {
      const device::cuda::OwnedStream stream;
      mqa::sm90::launch(pass, multiprocessors, stream);
      device::cuda::synchronize(stream);
    }
    compare(attended.download(), lse.download());
  }

 private:
  /// A tile that has no rows, or names what does not exist: it is left out.
  [[nodiscard]] UnionTile unsound_tile() {
    constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
    const auto group = static_cast<std::int32_t>(group_);
    const auto blocks = static_cast<std::int32_t>(capacity_ / kKeyBlock);
    const auto tokens = static_cast<std::int32_t>(query_len_[0] + query_len_[1]);
    const UnionTile tiles[] = {{0, 0, 0, 1},     {-1, 0, 1, 1},     {2, 0, 1, 1},          {kMost, 0, 1, 1},
                               {0, -1, 1, 1},    {0, tokens, 1, 1}, {0, kMost, 1, 1},      {0, 0, group + 1, 1},
                               {0, 0, -1, 1},    {0, 0, kMost, 1},  {0, 0, 1, blocks + 1}, {0, 0, 1, -1},
                               {0, 0, 1, -kMost}};
    return tiles[random_.below(std::ssize(tiles))];
  }

  static constexpr std::int64_t kGuard = 64;  ///< elements that follow an array

  [[nodiscard]] std::int64_t columns() const { return kRank + (has_rope_ ? kRope : 0); }
  [[nodiscard]] std::int64_t rope_stride() const { return heads_ * kRope + (in_chunks_ ? 8 : 7); }
  /// What addresses and strides of keys are multiples of.
  [[nodiscard]] std::int64_t unit() const { return in_chunks_ ? 16 : test::row_alignment(format_); }
  [[nodiscard]] std::int64_t query_rows() const {
    return rows_are_tokens_ ? query_len_[0] + query_len_[1] : static_cast<std::int64_t>(tiles_.size()) * group_;
  }

  /// Cuts both requests into tiles and draws which keys each row attends to.
  void make_lists(double density) {
    std::int64_t first_token = 0;
    std::vector<std::vector<std::int64_t>> unions;
    std::vector<std::pair<std::size_t, std::size_t>> rows_of;  // of a tile, among rows_
    for (std::int64_t b = 0; b < 2; ++b) {
      const std::int64_t context = seq_len_[at(b)] - query_len_[at(b)];
      for (std::int64_t position = context; position < seq_len_[at(b)];) {
        const std::int64_t end = std::min(mqa::tile_end(mqa::tile_of(position, group_), group_), seq_len_[at(b)]);
        const std::int64_t token = first_token + position - context;
        const auto tile = static_cast<std::int64_t>(tiles_.size());
        rows_of.emplace_back(rows_.size(), rows_.size() + at(end - position));
        std::vector<char> any(at(seq_len_[at(b)]));
        for (std::int64_t r = 0; r < end - position; ++r) {
          Row row{token + r, rows_are_tokens_ ? token + r : tile * group_ + r, {}};
          const bool is_empty = random_.chance(0.1);
          for (std::int64_t key = 0; key <= position + r && !is_empty; ++key) {
            if (random_.chance(density)) {
              row.keys.push_back(key);
              any[at(key)] = 1;
            }
          }
          rows_.push_back(row);
          request_of_row_.push_back(b);
        }
        std::vector<std::int64_t> joined;
        for (std::int64_t key = 0; key < seq_len_[at(b)]; ++key) {
          if (any[at(key)] != 0) {
            joined.push_back(key);
          }
        }
        const auto blocks = (static_cast<std::int64_t>(joined.size()) + kKeyBlock - 1) / kKeyBlock;
        capacity_ = std::max(capacity_, blocks * kKeyBlock);
        tiles_.push_back({static_cast<std::int32_t>(b), static_cast<std::int32_t>(token),
                          static_cast<std::int32_t>(end - position), static_cast<std::int32_t>(blocks)});
        unions.push_back(joined);
        position = end;
      }
      first_token += query_len_[at(b)];
    }
    tiles_.push_back({0, 0, 0, 1});  // of no rows: unsound_tile() takes its place
    unions.emplace_back();
    rows_of.emplace_back(0, 0);
    fill_lists(unions, rows_of);
  }

  /// What lies beyond a tile's blocks are keys far away, in every row's mask.
  void fill_lists(const std::vector<std::vector<std::int64_t>>& unions,
                  const std::vector<std::pair<std::size_t, std::size_t>>& rows_of) {
    const auto tiles = static_cast<std::int64_t>(tiles_.size());
    list_.assign(at(tiles * capacity_), std::int32_t{1} << 30);
    masks_.assign(at(tiles * capacity_ / kKeyBlock * group_), ~std::uint64_t{0});
    for (std::int64_t t = 0; t < tiles; ++t) {
      const std::vector<std::int64_t>& joined = unions[at(t)];
      for (std::int64_t i = 0; i < tiles_[at(t)].blocks * kKeyBlock; ++i) {
        const std::int64_t key = i < static_cast<std::int64_t>(joined.size()) ? joined[at(i)] : -1;
        list_[at(t * capacity_ + i)] = static_cast<std::int32_t>(key);
        for (std::int64_t g = 0; g < group_; ++g) {
          std::uint64_t& mask = masks_[at((t * capacity_ / kKeyBlock + i / kKeyBlock) * group_ + g)];
          const std::size_t row = rows_of[at(t)].first + at(g);
          const bool attends = key >= 0 && row < rows_of[at(t)].second &&
                               std::binary_search(rows_[row].keys.begin(), rows_[row].keys.end(), key);
          mask = (i % kKeyBlock == 0 ? 0 : mask) | std::uint64_t{attends ? 1U : 0U} << i % kKeyBlock;
        }
      }
    }
  }

  /// Keys lie in pages in a random order, or, of bfloat16, one after the other; some lie outside the cache. All else is
  /// NaN.
  void make_cache() {
    const cache::RowCodec codec(format_, geometry_, DType::bfloat16, kLatentScale);
    const std::int64_t row_bytes = cache_row_bytes(format_, geometry_);
    row_stride_ = (row_bytes + unit() - 1) / unit() * unit() + unit() * random_.below(3);
    std::vector<std::int64_t> starts[2];  // of each key's row, in bytes; -1: outside
    if (format_ != CacheFormat::bfloat16 || random_.chance(0.5)) {
      make_pages(starts);
    } else {
      make_packed_rows(starts);
    }
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t key = 0; key < seq_len_[at(b)]; ++key) {
        const bool is_attended = std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) {
          return request_of_row_[at(&row - rows_.data())] == b &&
                 std::binary_search(row.keys.begin(), row.keys.end(), key);
        });
        std::vector<float> values(at(kRank + kRope));
        const std::int64_t start = starts[b][at(key)];
        if (is_attended && start >= 0) {
          std::ranges::generate(values, [&] { return random_.normal(); });
          codec.write(values.data(), values.data() + kRank, cache_.data() + start, row_bytes);
          codec.read(cache_.data() + start, values.data(), values.data() + kRank);
        }
        keys_[b].insert(keys_[b].end(), values.begin(), values.end());
      }
    }
  }

  /// The last rows are too few at times.
  void make_packed_rows(std::vector<std::int64_t> (&starts)[2]) {
    first_row_ = {3, 3 + seq_len_[0] + 2};
    num_rows_ = first_row_[1] + std::max<std::int64_t>(0, seq_len_[1] - random_.below(4));
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t row = first_row_[at(b)]; row < first_row_[at(b)] + seq_len_[at(b)]; ++row) {
        starts[b].push_back(row < num_rows_ ? row * row_stride_ : -1);
      }
    }
    cache_.assign(at((num_rows_ + 5) * row_stride_), std::byte{0xff});
  }

  /// Pages of a few tokens, or of more than any request has; the table has a page too few at times.
  void make_pages(std::vector<std::int64_t> (&starts)[2]) {
    constexpr std::int64_t kHuge[] = {std::int64_t{1} << 20, (std::int64_t{1} << 31) - 1, std::int64_t{1} << 40};
    const std::int64_t longest = std::max(seq_len_[0], seq_len_[1]);
    page_size_ = random_.chance(0.2) ? kHuge[random_.below(3)] : 1 + random_.below(9);
    table_stride_ = (longest + page_size_ - 1) / page_size_;
    table_width_ = table_stride_ - (random_.chance(0.2) ? 1 : 0);
    num_pages_ = 2 * table_stride_;
    page_stride_ = std::min(page_size_, longest) * row_stride_ + unit() * random_.below(2);
    cache_.assign(at(num_pages_ * page_stride_), std::byte{0xff});
    block_table_.resize(at(num_pages_));
    std::iota(block_table_.begin(), block_table_.end(), 0);
    for (std::size_t i = block_table_.size(); i > 1; --i) {
      std::swap(block_table_[i - 1], block_table_[at(random_.below(static_cast<std::int64_t>(i)))]);
    }
    for (std::int32_t& page : block_table_) {
      if (random_.chance(0.05)) {
        page = random_.chance(0.5) ? -1 : static_cast<std::int32_t>(num_pages_ + random_.below(5));
      }
    }
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t key = 0; key < seq_len_[at(b)]; ++key) {
        const std::int64_t page = block_table_[at(b * table_stride_ + key / page_size_)];
        const bool is_inside = key / page_size_ < table_width_ && page >= 0 && page < num_pages_;
        starts[b].push_back(is_inside ? page * page_stride_ + key % page_size_ * row_stride_ : -1);
      }
    }
  }

  /// Rows of the queries that no token has are NaN; what comes out starts as NaN as well.
  void make_queries() {
    const std::int64_t tokens = query_len_[0] + query_len_[1];
    query_.assign(at(query_rows() * heads_ * kRank + kGuard), kNan);
    attended_.assign(query_.size(), kNan);
    query_rope_.assign(at(tokens * rope_stride()), kNan);
    lse_.assign(at(tokens * (heads_ + 1) + kGuard), kUnwritten);
    for (const Row& row : rows_) {
      for (std::int64_t i = 0; i < heads_ * kRank; ++i) {
        query_[at(row.slot * heads_ * kRank + i)] = bfloat16(random_.normal());
      }
      for (std::int64_t i = 0; i < heads_ * kRope; ++i) {
        query_rope_[at(row.token * rope_stride() + i)] = bfloat16(random_.normal());
      }
    }
    scale_ = 1.5F / std::sqrt(static_cast<float>(columns()));
    if (random_.chance(0.5)) {
      sink_.resize(at(heads_));
      std::ranges::generate(sink_, [&] { return random_.normal(); });
    }
  }

  void compare(const std::vector<bfloat16>& attended, const std::vector<float>& lse) const {
    std::vector<char> is_written(attended.size());
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      for (std::int64_t head = 0; head < heads_; ++head) {
        const std::int64_t first = (rows_[r].slot * heads_ + head) * kRank;
        std::fill_n(is_written.begin() + first, kRank, 1);
        compare_row(rows_[r], keys_[request_of_row_[r]], head, attended.data() + first,
                    lse[at(rows_[r].token * (heads_ + 1) + head)]);
        if (testing::Test::HasFatalFailure()) {
          return;
        }
      }
      ASSERT_EQ(lse[at(rows_[r].token * (heads_ + 1) + heads_)], kUnwritten) << "after row " << r;
    }
    for (std::size_t i = 0; i < attended.size(); ++i) {
      ASSERT_TRUE(is_written[i] != 0 || attended[i].bits == kNan.bits) << "element " << i << " is no row's";
    }
  }

  void compare_row(const Row& row, const std::vector<float>& keys, std::int64_t head, const bfloat16* attended,
                   float lse) const {
    const auto query = [&](std::int64_t i) {
      return static_cast<float>(i < kRank ? query_[at((row.slot * heads_ + head) * kRank + i)]
                                          : query_rope_[at(row.token * rope_stride() + head * kRope + i - kRank)]);
    };
    std::vector<double> scores;
    for (const std::int64_t key : row.keys) {
      double score = 0.0;
      for (std::int64_t i = 0; i < columns(); ++i) {
        score += static_cast<double>(query(i)) * keys[at(key * (kRank + kRope) + i)];
      }
      scores.push_back(score * scale_);
    }
    const double highest = scores.empty() ? 0.0 : *std::ranges::max_element(scores);
    double sum = 0.0;
    std::vector<double> expected(at(kRank));
    std::vector<double> magnitude(at(kRank));  // the same sum without cancellation
    for (std::size_t k = 0; k < scores.size(); ++k) {
      const double weight = std::exp(scores[k] - highest);
      sum += weight;
      for (std::int64_t i = 0; i < kRank; ++i) {
        const double value = keys[at(row.keys[k] * (kRank + kRope) + i)];
        expected[at(i)] += weight * value;
        magnitude[at(i)] += weight * std::fabs(value);
      }
    }
    if (scores.empty()) {
      ASSERT_EQ(lse, -std::numeric_limits<float>::infinity()) << "token " << row.token << ", head " << head;
      for (std::int64_t i = 0; i < kRank; ++i) {
        ASSERT_EQ(static_cast<float>(attended[i]), 0.0F) << "token " << row.token << ", head " << head;
      }
      return;
    }
    const double expected_lse = highest + std::log(sum);
    ASSERT_NEAR(lse, expected_lse, kLseTolerance) << "token " << row.token << ", head " << head;
    const double share = 1.0 / (sum * (1.0 + (sink_.empty() ? 0.0 : std::exp(sink_[at(head)] - expected_lse))));
    for (std::int64_t i = 0; i < kRank; ++i) {
      ASSERT_NEAR(static_cast<float>(attended[i]), expected[at(i)] * share, kRowTolerance * magnitude[at(i)] * share)
          << "token " << row.token << ", head " << head << ", column " << i;
    }
  }

  /// Scores are sums of at most 576 products, each at most a few units, in float32: below 1e-3 whatever their order.
  static constexpr double kLseTolerance = 1e-3;
  /// Weights and results are rounded to bfloat16, by 2^-8 each at most; weights are off by as much as scores besides.
  static constexpr double kRowTolerance = 0x1p-8 + 0x1p-8 + 2 * kLseTolerance;

  test::Random& random_;
  CacheFormat format_;
  std::int64_t heads_;
  std::int64_t group_;
  bool has_rope_;
  bool in_place_;
  bool rows_are_tokens_;
  bool in_chunks_;  // of 16 bytes keys and rope queries lie, else anyhow
  Geometry geometry_;
  float scale_ = 0.0F;
  std::vector<std::int64_t> query_len_;
  std::vector<std::int64_t> seq_len_;
  std::vector<Row> rows_;
  std::vector<std::int64_t> request_of_row_;
  std::vector<float> keys_[2];  // as read: latent and rope key, zeros where a page lies outside

  std::int64_t capacity_ = kKeyBlock;
  std::vector<UnionTile> tiles_;
  std::vector<std::int32_t> list_;
  std::vector<std::uint64_t> masks_;

  std::int64_t row_stride_ = 0;
  std::int64_t page_size_ = 0;
  std::int64_t page_stride_ = 0;
  std::int64_t num_pages_ = 0;
  std::int64_t table_stride_ = 0;
  std::int64_t table_width_ = 0;
  std::vector<std::int32_t> block_table_;  // empty: first_row_ counts
  std::vector<std::int64_t> first_row_;
  std::int64_t num_rows_ = 0;
  std::vector<std::byte> cache_;

  std::vector<bfloat16> query_;
  std::vector<bfloat16> query_rope_;
  std::vector<bfloat16> attended_;
  std::vector<float> lse_;
  std::vector<float> sink_;
};

class MqaSm90 : public testing::TestWithParam<CacheFormat> {
 protected:
  std::uint64_t seed_ = test::fresh_seed();
};

TEST_P(MqaSm90, AttendsToWhatTheListsSay) {
  for (int i = 0; i < kCases && !HasFatalFailure(); ++i) {
    const std::uint64_t seed = seed_ + static_cast<std::uint64_t>(i);
    test::Random random(seed);
    Problem problem(GetParam(), random);
    SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed) + ": " + problem.text());
    problem.run_and_compare(0);
  }
}

TEST_P(MqaSm90, ReplaysFromAGraph) {
  test::Random random(seed_);
  Problem problem(GetParam(), random);
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed_) + ": " + problem.text());
  problem.run_and_compare(2);
}

INSTANTIATE_TEST_SUITE_P(Formats, MqaSm90,
                         testing::Values(CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8,
                                         CacheFormat::fp8_ds_mla),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(MqaSm90Input, OfTheWrongShapeIsRefused) {
  const DeviceArray<std::byte> memory(4096);
  const DeviceArray<UnionTile> tiles(1);
  const DeviceArray<std::int32_t> keys(kKeyBlock);
  const DeviceArray<std::uint64_t> masks(1);
  mqa::sm90::Pass pass;
  pass.heads = 64;
  pass.query = memory.data();
  pass.attended = memory.data();
  pass.keys.data = memory.data();
  pass.keys.row_stride = 1024;
  pass.lists = {View<UnionTile>(tiles.data(), {1}), View<std::int32_t>(keys.data(), {1, kKeyBlock}),
                View<std::uint64_t>(masks.data(), {1, 1, 1})};
  const auto call = [](const mqa::sm90::Pass& p) { return [&p] { mqa::sm90::launch(p, 1, Stream{}); }; };
  mqa::sm90::Pass other = pass;
  other.query = memory.data() + 8;
  EXPECT_TRUE(test::throws_error(call(other), "query"));
  other = pass;
  other.attended = memory.data() + 2;
  EXPECT_TRUE(test::throws_error(call(other), "attended"));
  const DeviceArray<std::int64_t> first_row(1);
  other = pass;
  other.keys.first_row = first_row.data();
  other.keys.format = CacheFormat::fp8;
  EXPECT_TRUE(test::throws_error(call(other), "keys"));
  other = pass;
  other.lists.masks = View<std::uint64_t>(masks.data(), {1, 1, 2});
  EXPECT_TRUE(test::throws_error(call(other), "masks"));
}

}  // namespace
}  // namespace headrace
