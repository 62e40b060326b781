// SPDX-License-Identifier: Apache-2.0
// Bit masks made on the GPU, word for word against the CPU's.
#include "attention/mha/bit_mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "attention/mha/bit_mask_cuda.h"
#include "captured_graph.h"
#include "device/cuda/memory.h"
#include "on_device.h"
#include "random_rule.h"
#include "support/attention_case.h"
#include "support/errors.h"
#include "support/random.h"

namespace headrace {
namespace {

using attention::cuda::MaskPass;
using attention::mha::sm90::kMaskWords;
using attention::mha::sm90::kQueryTile;
using attention::mha::sm90::RequestSpan;
using device::cuda::DeviceArray;

constexpr std::int64_t kTiles[] = {64, 80, 128};
constexpr std::int64_t kPageSizes[] = {1, 3, 64};
constexpr std::uint32_t kPoison = 0xa5a5a5a5U;
constexpr int kCases = 25;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

/// Sets the bit of column `c` in a row's words of a key tile.
void set_column(std::uint32_t* words, std::int64_t c) { words[c / 2 % 4] |= 1U << (c / 8 * 2 + c % 2); }

/// The masks that CPU code makes of a case, as bits of [token][position].
class Oracle {
 public:
  explicit Oracle(const test::AttentionCase& problem) : inputs_(problem.inputs()) {
    std::int64_t longest = 1;
    for (const test::RequestShape& shape : problem.spec().requests) {
      longest = std::max(longest, shape.seq_len());
    }
    words_ = attention::mask_words(longest);
    bits_.resize(at(problem.tokens() * words_));
    std::vector<attention::PageEntry> entries(at(longest));
    attention::PageMap map{entries, -1};
    for (const attention::OracleQuery& query : problem.queries()) {
      const auto request = cache::request_of(inputs_.requests, query.request);
      const attention::MaskBuilder builder(problem.attention(), inputs_, request, map);
      builder.build(query.position, std::span(bits_).subspan(at(query.token * words_), at(words_)));
    }
  }
  [[nodiscard]] bool selected(std::int64_t token, std::int64_t position) const {
    return (bits_[at(token * words_ + position / 64)] >> (position % 64) & 1U) != 0;
  }

 private:
  Inputs inputs_;
  std::int64_t words_ = 0;
  std::vector<std::uint64_t> bits_;
};

/// The query rows of a span: the position of the first, and how many there are.
struct SpanRows {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

SpanRows rows_of(const RequestSpan& span, const test::RequestShape& shape) {
  SpanRows result;
  result.begin = std::max<std::int64_t>(span.rows_begin, shape.context_len) + span.first_row;
  const std::int64_t end = std::min<std::int64_t>(span.rows_end, shape.seq_len());
  result.count = std::max<std::int64_t>(0, std::min<std::int64_t>(span.row_count, end - result.begin));
  return result;
}

/// Random spans of a case's requests, their rows in the mask one run of 128 apart here and there.
struct Spans {
  std::vector<RequestSpan> spans;
  std::int64_t rows = 0;
  std::int64_t keys = 1;
};

Spans random_spans(const test::AttentionCase& problem, test::Random& random, bool whole) {
  const auto below = [&](std::int64_t n) { return static_cast<std::int32_t>(random.below(n)); };
  Spans result;
  for (const test::RequestShape& shape : problem.spec().requests) {
    RequestSpan span;
    const std::int64_t seq_len = shape.seq_len();
    span.rows_end = static_cast<std::int32_t>(seq_len) + below(5);  // planned from bounds
    span.row_count = span.rows_end;
    span.keys_end = span.rows_end;
    if (!whole) {
      span.rows_begin = below(seq_len + 1);
      span.rows_end = span.rows_begin + below(seq_len - span.rows_begin + 5);
      span.first_row = random.chance(0.5) ? 0 : below(shape.query_len + 3);
      span.row_count = random.chance(0.5) ? span.rows_end : below(shape.query_len + 3);
      span.keys_begin = below(seq_len + 3);
      span.keys_end = span.keys_begin + below(seq_len + 5);
    }
    span.first_slice_row = result.rows;
    result.rows += round_up(rows_of(span, shape).count, kQueryTile) + (random.chance(0.2) ? kQueryTile : 0);
    result.keys = std::max<std::int64_t>(result.keys, span.keys_end - span.keys_begin);
    result.spans.push_back(span);
  }
  return result;
}

/// The mask as it must be.
std::vector<std::uint32_t> expected_mask(const test::AttentionCase& problem, const Spans& spans, std::int64_t key_tile,
                                         std::int64_t tiles) {
  std::vector<std::uint32_t> mask(at(tiles * spans.rows * kMaskWords), kPoison);
  const Oracle oracle(problem);
  for (std::size_t b = 0; b < spans.spans.size(); ++b) {
    const RequestSpan& span = spans.spans[b];
    const test::RequestShape& shape = problem.spec().requests[b];
    const auto [begin, rows] = rows_of(span, shape);
    const std::int64_t key_end = std::min<std::int64_t>(span.keys_end, shape.seq_len());
    for (std::int64_t r = 0; r < round_up(rows, kQueryTile); ++r) {
      for (std::int64_t t = 0; t < tiles; ++t) {
        std::uint32_t* word = mask.data() + (t * spans.rows + span.first_slice_row + r) * kMaskWords;
        std::fill_n(word, kMaskWords, 0U);
        for (std::int64_t c = 0; c < key_tile && r < rows; ++c) {
          const std::int64_t key = span.keys_begin + t * key_tile + c;
          const std::int64_t token = problem.begin_of(static_cast<std::int64_t>(b)) + begin + r - shape.context_len;
          if (key < key_end && oracle.selected(token, key)) {
            set_column(word, c);
          }
        }
      }
    }
  }
  return mask;
}

/// The mask that the GPU makes.
std::vector<std::uint32_t> built_mask(const test::AttentionCase& problem, const Spans& spans, std::int64_t key_tile,
                                      std::int64_t tiles) {
  const Inputs inputs = problem.inputs();
  const test::RequestsOnDevice requests(inputs.requests);
  const test::SelectionOnDevice selection(inputs.selection);
  const DeviceArray<RequestSpan> device_spans(spans.spans);
  const DeviceArray<std::uint32_t> mask(tiles * spans.rows * kMaskWords);
  mask.bytes().fill(std::byte{0xa5});

  std::int64_t longest = 0;
  for (const test::RequestShape& shape : problem.spec().requests) {
    longest = std::max(longest, shape.seq_len());
  }
  const std::int64_t count = device_spans.size();
  const std::int64_t entries = attention::cuda::page_map_entries(longest, inputs.cache.page_size);
  const DeviceArray<std::uint64_t> map_memory(count * entries);

  const device::cuda::OwnedStream stream;
  MaskPass pass;
  pass.rule = problem.attention().rule;
  pass.selection = selection.get();
  pass.requests = requests.get();
  pass.spans = View<const RequestSpan>(device_spans.data(), {count});
  pass.key_tile = key_tile;
  pass.mask = View<std::uint32_t>(mask.data(), {tiles, spans.rows, kMaskWords});
  if (problem.spec().space == SelectionSpace::cache_slot) {
    pass.page_map.entries = View<std::uint64_t>(map_memory.data(), {count, entries});
    pass.page_size = inputs.cache.page_size;
    attention::cuda::build_page_map(inputs.cache, pass.requests, pass.page_map, stream);
  }
  attention::cuda::build_bit_masks(pass, stream);
  device::cuda::synchronize(stream);
  return mask.download();
}

void compare_masks(const test::AttentionCase& problem, const Spans& spans, std::int64_t key_tile) {
  const std::int64_t tiles = (spans.keys + key_tile - 1) / key_tile;
  const std::vector<std::uint32_t> built = built_mask(problem, spans, key_tile, tiles);
  const std::vector<std::uint32_t> expected = expected_mask(problem, spans, key_tile, tiles);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(expected.size()); ++i) {
    ASSERT_EQ(built[at(i)], expected[at(i)])
        << "tile " << i / kMaskWords / spans.rows << " of " << tiles << ", row " << i / kMaskWords % spans.rows
        << " of " << spans.rows << ", word " << i % kMaskWords << "; key tile " << key_tile << "; " << problem.spec();
  }
}

test::CaseSpec random_spec(test::Random& random, SelectionSpace space, std::int64_t page_size) {
  test::CaseSpec spec;
  spec.geometry = {1, 2, 2, 0, 2};
  spec.compute = DType::bfloat16;
  spec.format = CacheFormat::bfloat16;
  spec.rule = random_rule(random);
  spec.space = space;
  spec.page_size = page_size;
  spec.gap = random.chance(0.5) ? 4 * random.below(3) : random.below(6);
  spec.width = random.chance(0.5) ? 4 * (1 + random.below(150)) : 1 + random.below(300);
  spec.with_count = random.chance(0.7);
  spec.repeat_page = random.chance(0.2);
  for (std::int64_t n = 1 + random.below(5); n > 0; --n) {
    spec.requests.push_back({random.below(200), random.chance(0.3) ? 0 : random.below(500)});
  }
  spec.seed = random.bits();
  return spec;
}

struct Trial {
  SelectionSpace space = SelectionSpace::request_position;
  std::int64_t key_tile = 64;
};

void PrintTo(const Trial& trial, std::ostream* stream) {  // NOLINT(readability-identifier-naming): GoogleTest's name
  *stream << (trial.space == SelectionSpace::cache_slot ? "slots" : "positions") << ", key tiles of " << trial.key_tile;
}

std::vector<Trial> trials() {
  std::vector<Trial> result;
  for (const SelectionSpace space : {SelectionSpace::request_position, SelectionSpace::cache_slot}) {
    for (const std::int64_t key_tile : kTiles) {
      result.push_back({space, key_tile});
    }
  }
  return result;
}

class GpuBitMask : public testing::TestWithParam<Trial> {};

TEST_P(GpuBitMask, HasTheBitsOfTheCpu) {
  const std::uint64_t seed = test::fresh_seed();
  for (int i = 0; i < kCases && !HasFatalFailure(); ++i) {
    SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed + static_cast<std::uint64_t>(i)));
    test::Random random(seed + static_cast<std::uint64_t>(i));
    const test::AttentionCase problem(random_spec(random, GetParam().space, kPageSizes[random.below(3)]));
    compare_masks(problem, random_spans(problem, random, random.chance(0.3)), GetParam().key_tile);
  }
}

/// More keys than a window of shared memory holds.
TEST_P(GpuBitMask, SpansWindows) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  test::CaseSpec spec = random_spec(random, GetParam().space, 64);
  spec.rule = SelectionRule::opaque();
  spec.width = 1500;
  spec.requests = {{9, 70'000 + random.below(1000)}, {3, 10}};
  const test::AttentionCase problem(spec);
  compare_masks(problem, random_spans(problem, random, true), GetParam().key_tile);
}

INSTANTIATE_TEST_SUITE_P(Spaces, GpuBitMask, testing::ValuesIn(trials()), [](const auto& info) {
  return std::string(info.param.space == SelectionSpace::cache_slot ? "slots" : "positions") + "_tiles_of_" +
         std::to_string(info.param.key_tile);
});

/// A page that occurs twice counts where it occurs first, and one outside the cache is nobody's.
TEST(GpuPageMap, KnowsFirstOccurrencesOfPagesOfTheCache) {
  constexpr std::int32_t kBlocks = 300;
  constexpr std::int32_t kPages = 200;
  constexpr std::int32_t kPageSize = 2;
  std::vector<std::int32_t> table(at(kBlocks));
  for (std::int32_t block = 0; block < kBlocks; ++block) {
    table[at(block)] = (kBlocks - 1 - block) % 250;  // 0 to 49 occur twice, 200 to 249 lie outside
  }
  constexpr std::int32_t kSlots = 250 * kPageSize;
  std::vector<std::int32_t> slots;
  std::vector<std::uint32_t> expected(at(5 * 2 * 128 * kMaskWords));
  for (std::int32_t slot = 0; slot < kSlots; ++slot) {
    slots.push_back(slot);
    const std::int32_t page = slot / kPageSize;
    if (page < kPages) {
      const auto block = std::find(table.begin(), table.end(), page) - table.begin();
      const std::int64_t key = block * kPageSize + slot % kPageSize;
      set_column(expected.data() + key / 64 * 128 * kMaskWords, key % 64);
    }
  }
  const DeviceArray<std::int32_t> index(slots);
  const DeviceArray<std::int32_t> block_table(table);
  const DeviceArray<std::int32_t> query_start(std::vector<std::int32_t>{0, 1});
  const DeviceArray<std::int32_t> seq_len(std::vector<std::int32_t>{kBlocks * kPageSize});
  const DeviceArray<RequestSpan> spans(
      std::vector<RequestSpan>{{.rows_end = 600, .row_count = 1, .keys_end = kBlocks * kPageSize}});
  const DeviceArray<std::uint32_t> mask(static_cast<std::int64_t>(expected.size()));
  const DeviceArray<std::uint64_t> entries(attention::cuda::page_map_entries(kBlocks * kPageSize, kPageSize));
  MaskPass pass;
  pass.rule = SelectionRule::opaque();
  pass.selection.index = View<const std::int32_t>(index.data(), {1, kSlots});
  pass.selection.space = SelectionSpace::cache_slot;
  pass.requests = {View<const std::int32_t>(query_start.data(), {2}), View<const std::int32_t>(seq_len.data(), {1}),
                   View<const std::int32_t>(block_table.data(), {1, kBlocks})};
  pass.spans = View<const RequestSpan>(spans.data(), {1});
  pass.key_tile = 64;
  pass.mask = View<std::uint32_t>(mask.data(), {10, 128, kMaskWords});
  pass.page_map.entries = View<std::uint64_t>(entries.data(), {1, entries.size()});
  pass.page_size = kPageSize;
  CacheView cache;
  cache.num_pages = kPages;
  cache.page_size = kPageSize;
  const device::cuda::OwnedStream stream;
  attention::cuda::build_page_map(cache, pass.requests, pass.page_map, stream);
  attention::cuda::build_bit_masks(pass, stream);
  device::cuda::synchronize(stream);
  EXPECT_EQ(mask.download(), expected);
}

TEST(GpuBitMaskInput, OfTheWrongShapeIsRefused) {
  const std::vector<std::int32_t> two = {0, 1};
  const std::vector<RequestSpan> one(1);
  MaskPass pass;
  pass.selection.index = View<const std::int32_t>(two.data(), {1, 2});
  pass.requests.query_start = View<const std::int32_t>(two.data(), {2});
  pass.requests.seq_len = View<const std::int32_t>(two.data(), {1});
  pass.spans = View<const RequestSpan>(one.data(), {1});
  pass.key_tile = 64;
  pass.mask = View<std::uint32_t>(nullptr, {1, 128, 4});
  const auto call = [](const MaskPass& p) { return [&p] { attention::cuda::build_bit_masks(p, Stream{}); }; };
  MaskPass other = pass;
  other.key_tile = 96;
  EXPECT_TRUE(test::throws_error(call(other), "64, 80 or 128"));
  other = pass;
  other.mask = View<std::uint32_t>(nullptr, {1, 120, 4});
  EXPECT_TRUE(test::throws_error(call(other), "a multiple of 128 rows"));
  other = pass;
  other.mask = View<std::uint32_t>(nullptr, {1, 128, 2});
  EXPECT_TRUE(test::throws_error(call(other), "mask"));
  other = pass;
  other.selection.space = SelectionSpace::cache_slot;
  EXPECT_TRUE(test::throws_error(call(other), "page_map"));
  other = pass;
  other.requests.query_start = View<const std::int32_t>(two.data(), {1});
  EXPECT_TRUE(test::throws_error(call(other), "query_start"));
}

/// A selection whose last entry lies beyond 2^32 elements.
TEST(GpuBitMaskAddresses, PassSixteenGigabytes) {
  constexpr std::int64_t kRows = 129;
  constexpr std::int64_t kStride = std::int64_t{1} << 25;
  constexpr std::int64_t kWidth = 5;
  const DeviceArray<std::int32_t> index((kRows - 1) * kStride + kWidth);
  for (std::int64_t row = 0; row < kRows; ++row) {
    const auto first = static_cast<std::int32_t>(row % 7);
    const std::vector<std::int32_t> entries = {first, 100 + first, -5, first, 1000};
    index.bytes().upload(std::as_bytes(std::span(entries)), row * kStride * 4);
  }
  const DeviceArray<std::int32_t> query_start(std::vector<std::int32_t>{0, kRows});
  const DeviceArray<std::int32_t> seq_len(std::vector<std::int32_t>{200 + kRows});
  const DeviceArray<RequestSpan> spans(std::vector<RequestSpan>{{0, 200 + kRows, 0, kRows, 0, 200 + kRows, 0, 0}});
  const DeviceArray<std::uint32_t> mask(6 * 256 * kMaskWords);
  MaskPass pass;
  pass.rule = SelectionRule::opaque();
  pass.selection.index = View<const std::int32_t>(index.data(), 2, {kRows, kWidth, 0, 0}, {kStride, 1, 0, 0});
  pass.requests.query_start = View<const std::int32_t>(query_start.data(), {2});
  pass.requests.seq_len = View<const std::int32_t>(seq_len.data(), {1});
  pass.spans = View<const RequestSpan>(spans.data(), {1});
  pass.key_tile = 64;
  pass.mask = View<std::uint32_t>(mask.data(), {6, 256, kMaskWords});
  const device::cuda::OwnedStream stream;
  attention::cuda::build_bit_masks(pass, stream);
  device::cuda::synchronize(stream);
  const std::vector<std::uint32_t> words = mask.download();
  for (std::int64_t row = 0; row < 256; ++row) {
    std::uint32_t expected[6 * kMaskWords] = {};
    if (row < kRows) {
      set_column(expected, row % 7);
      set_column(expected + kMaskWords, 100 - 64 + row % 7);
    }
    for (std::int64_t i = 0; i < 6 * kMaskWords; ++i) {
      ASSERT_EQ(words[at((i / kMaskWords * 256 + row) * kMaskWords + i % kMaskWords)], expected[i])
          << "row " << row << ", tile " << i / kMaskWords;
    }
  }
}

TEST(GpuBitMaskGraph, ReplaysWithAnotherSelectionAndOtherLengths) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  constexpr std::int64_t kRows = 100;
  constexpr std::int64_t kWidth = 16;
  const DeviceArray<std::int32_t> index(kRows * kWidth);
  const DeviceArray<std::int32_t> query_start(2);
  const DeviceArray<std::int32_t> seq_len(1);
  const DeviceArray<RequestSpan> spans(std::vector<RequestSpan>{{0, 300, 0, 300, 0, 300, 0, 0}});
  const DeviceArray<std::uint32_t> mask(5 * 128 * kMaskWords);
  MaskPass pass;
  pass.rule = SelectionRule::opaque();
  pass.selection.index = View<const std::int32_t>(index.data(), {kRows, kWidth});
  pass.requests.query_start = View<const std::int32_t>(query_start.data(), {2});
  pass.requests.seq_len = View<const std::int32_t>(seq_len.data(), {1});
  pass.spans = View<const RequestSpan>(spans.data(), {1});
  pass.key_tile = 64;
  pass.mask = View<std::uint32_t>(mask.data(), {5, 128, kMaskWords});
  const test::CapturedGraph graph([&](Stream stream) { attention::cuda::build_bit_masks(pass, stream); });
  for (const std::int32_t rows : {100, 96, 1}) {
    const auto length = static_cast<std::int32_t>(rows + random.below(200));
    std::vector<std::int32_t> entries;
    for (std::int64_t i = 0; i < kRows * kWidth; ++i) {
      entries.push_back(static_cast<std::int32_t>(random.below(320) - 10));
    }
    index.upload(entries);
    query_start.upload(std::vector<std::int32_t>{0, rows});
    seq_len.upload(std::vector<std::int32_t>{length});
    mask.bytes().fill(std::byte{0xa5});
    graph.replay();
    const std::vector<std::uint32_t> words = mask.download();
    for (std::int64_t row = 0; row < 128; ++row) {
      std::uint32_t expected[5 * kMaskWords] = {};
      const std::int64_t position = length - rows + row;
      for (std::int64_t c = 0; c < kWidth && row < rows; ++c) {
        const std::int64_t key = entries[at(row * kWidth + c)];
        if (key >= 0 && key <= position) {
          set_column(expected + key / 64 * kMaskWords, key % 64);
        }
      }
      for (std::int64_t i = 0; i < 5 * kMaskWords; ++i) {
        ASSERT_EQ(words[at((i / kMaskWords * 128 + row) * kMaskWords + i % kMaskWords)], expected[i])
            << "rows " << rows << ", row " << row << ", tile " << i / kMaskWords;
      }
    }
  }
}

}  // namespace
}  // namespace headrace
