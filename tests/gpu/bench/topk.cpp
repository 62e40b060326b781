// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <utility>

#include "attention/mqa/sm90.h"
#include "attention/mqa/union_list.h"
#include "bench.h"
#include "cache/cuda.h"
#include "device/cuda/probe.h"
#include "headrace/selection.h"
#include "selection/generators.h"
#include "support/cache_rows.h"
#include "support/random.h"

namespace headrace::bench {
namespace {

using attention::mqa::kKeyBlock;
using attention::mqa::PathRows;
using attention::mqa::TileReference;
using attention::mqa::UnionLists;
using attention::mqa::UnionTile;
using attention::mqa::sm90::KeyRows;
using device::cuda::DeviceArray;
using device::cuda::DeviceBuffer;

constexpr std::int64_t kRank = 512;
constexpr std::int64_t kPageSize = 64;

/// One request's queries at the end of its keys, and how their selection is made.
struct Step {
  std::int64_t queries = 0;
  std::int64_t context = 0;
  const char* selection = "";  ///< for parse_generator
  std::int64_t rope = 0;

  [[nodiscard]] std::int64_t keys() const noexcept { return queries + context; }
  [[nodiscard]] std::string name() const {
    return fmt::format("{}{}, {}, {}", queries, context > 0 ? fmt::format(" + {}", context) : "", selection,
                       kRank + rope);
  }
};

/// Random values with moderate exponents, again and again: zeros would run faster than numbers do.
void fill_random(const DeviceBuffer& buffer) {
  test::Random random(1);
  std::vector<bfloat16> values(std::size_t{1} << 20);
  for (bfloat16& value : values) {
    value = bfloat16(random.normal());
  }
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  for (std::int64_t at = 0; at < buffer.size_bytes(); at += std::ssize(bytes)) {
    buffer.upload(bytes.first(static_cast<std::size_t>(std::min(std::ssize(bytes), buffer.size_bytes() - at))), at);
  }
}

/// Rows of a cache in its format, likewise.
void fill_rows(const DeviceBuffer& buffer, CacheFormat format, std::int64_t rope) {
  constexpr int kRows = 1024;
  test::Random random(2);
  std::vector<float> latent(static_cast<std::size_t>(kRank));
  std::vector<float> rope_key(static_cast<std::size_t>(rope));
  std::vector<std::byte> bytes;
  for (int row = 0; row < kRows; ++row) {
    std::ranges::generate(latent, [&] { return random.normal(); });
    std::ranges::generate(rope_key, [&] { return random.normal(); });
    const std::vector<std::byte> encoded = test::encode_row(format, latent, rope_key, 1.0F);
    bytes.insert(bytes.end(), encoded.begin(), encoded.end());
  }
  for (std::int64_t at = 0; at < buffer.size_bytes(); at += std::ssize(bytes)) {
    buffer.upload(std::span<const std::byte>(bytes).first(
                      static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(bytes), buffer.size_bytes() - at))),
                  at);
  }
}

/// A step's selection, lengths and cache, whatever the heads are.
class Data {
 public:
  Data(const Step& step, CacheFormat format)
      : step_(step), generator_(selection::parse_generator(step.selection)), format_(format) {
    const std::int64_t width = generator_.width();
    std::vector<std::int32_t> index(static_cast<std::size_t>(step.queries * width));
    std::vector<std::int32_t> count(static_cast<std::size_t>(step.queries));
    generator_.fill(0, step.context, View<std::int32_t>(index.data(), {step.queries, width}),
                    View<std::int32_t>(count.data(), {step.queries}));
    index_ = DeviceArray<std::int32_t>(index);
    count_ = DeviceArray<std::int32_t>(count);
    query_start_ = DeviceArray<std::int32_t>(std::vector<std::int32_t>{0, static_cast<std::int32_t>(step.queries)});
    seq_len_ = DeviceArray<std::int32_t>(std::vector<std::int32_t>{static_cast<std::int32_t>(step.keys())});
    rows_ = DeviceArray<PathRows>(std::vector<PathRows>{{0, static_cast<std::int32_t>(step.keys())}});
    const std::int64_t pages = (step.keys() + kPageSize - 1) / kPageSize;
    std::vector<std::int32_t> table;
    for (std::int64_t page = 0; page < pages; ++page) {
      table.push_back(static_cast<std::int32_t>((page * 7919) % pages));  // 7919 divides no such number of pages
    }
    table_ = DeviceArray<std::int32_t>(table);
    cache_ = DeviceBuffer(pages * kPageSize * row_bytes());
    fill_rows(cache_, format, step.rope);
  }

  [[nodiscard]] const Step& step() const noexcept { return step_; }
  [[nodiscard]] std::int64_t width() const noexcept { return generator_.width(); }
  [[nodiscard]] CacheView cache() const {
    return {cache_.data(), table_.size(), kPageSize, kPageSize * row_bytes(), row_bytes()};
  }
  [[nodiscard]] Requests requests() const {
    return {View<const std::int32_t>(query_start_.data(), {2}), View<const std::int32_t>(seq_len_.data(), {1}),
            View<const std::int32_t>(table_.data(), {1, table_.size()})};
  }
  [[nodiscard]] KeyRows keys() const {
    return attention::mqa::sm90::rows_in_pages(format_, cache(), requests().block_table);
  }
  [[nodiscard]] attention::mqa::UnionPass pass(std::int64_t group, View<const TileReference> tiles,
                                               const UnionLists& lists) const {
    Selection selection;
    selection.index = View<const std::int32_t>(index_.data(), {step_.queries, width()});
    selection.count = View<const std::int32_t>(count_.data(), {step_.queries});
    return {.rule = SelectionRule::opaque(),
            .selection = selection,
            .requests = requests(),
            .rows = View<const PathRows>(rows_.data(), {1}),
            .tiles = tiles,
            .group = group,
            .tokens = step_.queries,
            .keys_bound = step_.keys(),
            .lists = lists,
            .page_map = {},
            .page_size = 0};
  }

 private:
  [[nodiscard]] std::int64_t row_bytes() const { return cache_row_bytes(format_, {1, kRank, 128, step_.rope, 128}); }

  Step step_;
  selection::Generator generator_;
  CacheFormat format_;
  DeviceArray<std::int32_t> index_;
  DeviceArray<std::int32_t> count_;
  DeviceArray<std::int32_t> query_start_;
  DeviceArray<std::int32_t> seq_len_;
  DeviceArray<std::int32_t> table_;
  DeviceArray<PathRows> rows_;
  DeviceBuffer cache_;
};

/// Lists and kernel for so many heads, apart and together.
/// @param rows  where the keys lie
/// @return what both take, in microseconds
Quartiles bench_heads(const Bench& bench, const Data& data, const KeyRows& rows, std::int64_t heads, const char* note,
                      int multiprocessors) {
  const Step& step = data.step();
  const std::int64_t group = attention::mqa::group_of(heads);
  const std::int64_t num_tiles = attention::mqa::most_tiles(step.queries, group);
  std::vector<TileReference> references;
  for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
    references.push_back({0, static_cast<std::int32_t>(tile)});
  }
  const std::int64_t most = std::min(step.keys(), group * data.width());
  const std::int64_t capacity = (most + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  const DeviceArray<TileReference> tiles(references);
  const DeviceArray<UnionTile> union_tiles(num_tiles);
  const DeviceArray<std::int32_t> keys(num_tiles * capacity);
  const DeviceArray<std::uint64_t> masks(num_tiles * capacity / kKeyBlock * group);
  const UnionLists lists{View<UnionTile>(union_tiles.data(), {num_tiles}),
                         View<std::int32_t>(keys.data(), {num_tiles, capacity}),
                         View<std::uint64_t>(masks.data(), {num_tiles, capacity / kKeyBlock, group})};
  const attention::mqa::UnionPass list_pass =
      data.pass(group, View<const TileReference>(tiles.data(), {num_tiles}), lists);

  const DeviceBuffer query(2 * step.queries * heads * kRank);
  const DeviceBuffer attended(query.size_bytes());  // apart: queries that were attended to would be all alike
  const DeviceBuffer query_rope(std::max<std::int64_t>(2 * step.queries * heads * step.rope, 16));
  const DeviceArray<std::int32_t> counter(1);
  fill_random(query);
  fill_random(query_rope);
  attention::mqa::sm90::Pass pass;
  pass.heads = heads;
  pass.tokens = step.queries;
  pass.requests = 1;
  pass.has_rope = step.rope > 0;
  pass.scale = 0.04F;
  pass.query = query.data();
  pass.rows_are_tokens = true;
  pass.query_rope = query_rope.data();
  pass.query_rope_stride = heads * step.rope;
  pass.query_rope_head_stride = step.rope;
  pass.keys = rows;
  pass.lists = lists;
  pass.attended = attended.data();
  pass.counter = counter.data();

  attention::mqa::build_union_lists(list_pass, bench.stream());
  device::cuda::synchronize(bench.stream());
  double blocks = 0.0;
  for (const UnionTile& tile : union_tiles.download()) {
    blocks += static_cast<double>(tile.blocks);
  }
  const auto width = static_cast<double>(kRank + step.rope + kRank);
  const double parts = heads > attention::mqa::kTileRows ? 2.0 : 1.0;
  const double flops = parts * blocks * 2.0 * 64.0 * 64.0 * width;
  const double read = static_cast<double>(step.queries * data.width()) * 4.0;
  const std::string name = fmt::format("{}, {} heads{}", step.name(), heads, note);
  const Quartiles built = bench.time("lists   " + name, read, 0.0,
                                     [&](Stream stream) { attention::mqa::build_union_lists(list_pass, stream); });
  const Quartiles launched = bench.time("kernel  " + name, 0.0, flops, [&](Stream stream) {
    attention::mqa::sm90::launch(pass, multiprocessors, stream);
  });
  const Quartiles both = built + launched;
  fmt::print("    both {:.3f} ms, {:.0f} keys a tile of {}, {:.4f} ns a tile and key\n", both.median / 1e3,
             blocks * 64.0 / static_cast<double>(num_tiles), group, both.median * 1e3 / (blocks * 64.0));
  return both;
}

/// Quantised rows, gathered by the kernel or converted first, beside bfloat16.
void bench_formats(const Bench& bench, std::int64_t rope, int multiprocessors) {
  constexpr std::int64_t kHeads = 16;
  const Step step{16384, 0, "drift:0.9", rope};
  const Data bfloat16_data(step, CacheFormat::bfloat16);
  const Quartiles plain = bench_heads(bench, bfloat16_data, bfloat16_data.keys(), kHeads, "", multiprocessors);
  const Geometry geometry{kHeads, kRank, 128, step.rope, 128};
  const DeviceArray<bfloat16> rows(step.keys() * geometry.latent_dim());
  const DeviceArray<std::int64_t> first_row(std::vector<std::int64_t>{0});
  KeyRows converted_rows;
  converted_rows.data = reinterpret_cast<const std::byte*>(rows.data());
  converted_rows.row_stride = geometry.latent_dim() * size_of(DType::bfloat16);
  converted_rows.first_row = first_row.data();
  converted_rows.num_rows = step.keys();
  const View<bfloat16> latent(rows.data(), 2, {step.keys(), kRank}, {geometry.latent_dim(), 1});
  const View<bfloat16> rope_key(rows.data() + kRank, 2, {step.keys(), step.rope}, {geometry.latent_dim(), 1});
  const DeviceArray<cache::cuda::KeyRun> runs(
      std::vector<cache::cuda::KeyRun>{{0, 0, static_cast<std::int32_t>(step.keys()), 0}});
  for (const CacheFormat format : {CacheFormat::fp8, CacheFormat::fp8_ds_mla}) {
    const Data data(step, format);
    const std::string name(name_of(format));
    const Quartiles direct = bench_heads(bench, data, data.keys(), kHeads, (", " + name).c_str(), multiprocessors);
    const Quartiles conversion = bench.time("convert " + name, 0.0, 0.0, [&](Stream stream) {
      cache::cuda::gather(geometry, format, data.cache(), data.requests(),
                          View<const cache::cuda::KeyRun>(runs.data(), {1}), latent, rope_key, stream);
    });
    const Quartiles converted =
        bench_heads(bench, data, converted_rows, kHeads, (", converted " + name).c_str(), multiprocessors);
    fmt::print("    {}, d_qk {}, of bf16: {} gathered directly; {} converted first\n", name, kRank + rope,
               ratio_text(direct, plain), ratio_text(conversion + converted, plain));
  }
}

}  // namespace

void bench_topk(const Bench& bench) {
  const int multiprocessors = device::cuda::probe(0).multiprocessors;
  attention::mqa::load_union_lists();
  attention::mqa::sm90::load();
  const auto time = [&](const Step& step, const std::vector<std::int64_t>& heads) {
    const Data data(step, CacheFormat::bfloat16);
    for (const std::int64_t h : heads) {
      bench_heads(bench, data, data.keys(), h, "", multiprocessors);
    }
  };
  time({16384, 0, "drift:0.9", 0}, {64, 32, 16, 8, 4});
  time({16384, 0, "drift:0.9", 64}, {128, 64, 16, 8});
  for (const char* selection : {"drift:0.8", "drift:0.95", "pooled:4:0.9", "uniform"}) {
    time({16384, 0, selection, 0}, {16, 8});
  }
  time({16384, 0, "uniform", 64}, {16, 8});
  for (const std::int64_t context : {24576, 122880}) {
    time({8192, context, "drift:0.9", 64}, {16, 8});
  }
  // The time of a tile and key at the end of ever more keys.
  time({8192, 0, "drift:0.9", 64}, {16});
  for (const std::int64_t context : {0, 16384, 49152, 114688}) {
    time({16384, context, "drift:0.9", 64}, {16});
  }
  for (const std::int64_t rope : {0, 64}) {
    bench_formats(bench, rope, multiprocessors);
  }
}

}  // namespace headrace::bench
