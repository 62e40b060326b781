// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "attention/mqa/union_list.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "random_rule.h"
#include "support/random.h"

/// What the tests of union lists share: problems, what their lists are by definition, and the lists the GPU makes.
namespace headrace::test::union_list_kit {

using attention::mqa::kKeyBlock;
using attention::mqa::PathRows;
using attention::mqa::TileReference;
using attention::mqa::UnionPass;
using attention::mqa::UnionTile;
using device::cuda::DeviceArray;

inline constexpr std::int64_t kPageSizes[] = {1, 3, 64};
inline constexpr std::int32_t kHuge = std::numeric_limits<std::int32_t>::max();
inline constexpr std::int32_t kLowest = std::numeric_limits<std::int32_t>::min();
inline constexpr std::int64_t kGuard = 256;  // elements before and after each part of the lists
inline constexpr std::byte kPoison{0xa5};

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
inline std::int64_t length(const auto& values) { return static_cast<std::int64_t>(values.size()); }
inline std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

/// What lists are made from, on the host.
struct Problem {
  SelectionRule rule;
  SelectionSpace space = SelectionSpace::request_position;
  std::vector<std::int32_t> query_start;
  std::vector<std::int32_t> seq_len;
  std::vector<std::int32_t> block_table;
  std::int64_t table_width = 1;
  std::int64_t num_pages = 0;
  std::int64_t page_size = 1;
  std::vector<std::int32_t> index;
  std::int64_t width = 0;
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 1;
  std::vector<std::int32_t> count;  // none: all columns count
  std::vector<PathRows> rows;
  std::vector<TileReference> tiles;
  std::int64_t group = 1;
  std::int64_t window_keys = 0;

  [[nodiscard]] std::int64_t requests() const { return length(seq_len); }
  [[nodiscard]] std::int64_t tokens() const { return length(index) / row_stride; }
  [[nodiscard]] std::int32_t& entry(std::int64_t token, std::int64_t column) {
    return index[at(token * row_stride + column * column_stride)];
  }
};

inline void PrintTo(const Problem& p,
                    std::ostream* stream) {  // NOLINT(readability-identifier-naming): GoogleTest's name
  *stream << p.rule.to_string() << (p.space == SelectionSpace::cache_slot ? ", slots" : ", positions") << ", group "
          << p.group << ", window_keys " << p.window_keys << ", width " << p.width << ", strides " << p.row_stride
          << '/' << p.column_stride << ", page size " << p.page_size << ", counts " << !p.count.empty()
          << ", requests (tokens from, keys, rows)";
  for (std::size_t b = 0; b < p.seq_len.size(); ++b) {
    *stream << ' ' << p.query_start[b] << '/' << p.seq_len[b] << '/' << p.rows[b].begin << '-' << p.rows[b].end;
  }
}

// ---- the definition -------------------------------------------------------------------------------------------------

/// A tile's list: all of it that has a meaning.
struct List {
  UnionTile tile;
  std::vector<std::int32_t> keys;
  std::vector<std::uint64_t> masks;
};

/// The request's block that each page of the cache is.
inline std::map<std::int64_t, std::int64_t> blocks_of_pages(const Problem& p, std::int64_t request) {
  std::map<std::int64_t, std::int64_t> blocks;
  for (std::int64_t i = 0; i < p.table_width && i * p.page_size < p.seq_len[at(request)]; ++i) {
    const std::int64_t page = p.block_table[at(request * p.table_width + i)];
    if (page >= 0 && page < p.num_pages) {
      blocks.emplace(page, i);  // where it occurs first
    }
  }
  return blocks;
}

/// The keys that the row at a position attends to.
inline std::set<std::int64_t> keys_of_row(const Problem& p, std::int64_t request, std::int64_t token,
                                          std::int64_t position, const std::map<std::int64_t, std::int64_t>& blocks) {
  std::set<std::int64_t> keys;
  if (p.rule.covers(position)) {
    for (std::int64_t key = 0; key <= position; ++key) {
      keys.insert(keys.end(), key);
    }
    return keys;
  }
  const std::int64_t columns = p.count.empty() ? p.width : std::clamp<std::int64_t>(p.count[at(token)], 0, p.width);
  for (std::int64_t c = 0; c < columns; ++c) {
    const std::int64_t entry = p.index[at(token * p.row_stride + c * p.column_stride)];
    if (p.space == SelectionSpace::request_position) {
      if (entry >= 0 && entry <= position) {
        keys.insert(entry);
      }
    } else if (entry >= 0) {
      const auto found = blocks.find(entry / p.page_size);
      if (found != blocks.end()) {
        const std::int64_t key = found->second * p.page_size + entry % p.page_size;
        if (key < p.seq_len[at(request)]) {
          keys.insert(key);
        }
      }
    }
  }
  return keys;
}

/// The position at which the tile after a position's begins.
inline std::int64_t next_tile(std::int64_t position, std::int64_t group) {
  const std::int64_t block = position / 64 * 64;
  return std::min(block + 64, block + ((position - block) / group + 1) * group);
}

/// The positions of a tile's rows, and the token of position 0.
struct TileRows {
  std::vector<std::int64_t> positions;
  std::int64_t first_token = 0;
};

inline TileRows rows_of(const Problem& p, const TileReference& tile) {
  const std::size_t b = at(tile.request);
  const std::int64_t query_begin = p.query_start[b];
  const std::int64_t query_end = p.query_start[b + 1];
  const std::int64_t context = p.seq_len[b] - (query_end - query_begin);
  TileRows result;
  result.first_token = query_begin - context;
  // Tiles are counted from the first row that has a token.
  const std::int64_t begin = std::max<std::int64_t>({0, p.rows[b].begin, context, -result.first_token});
  const std::int64_t end = std::min(p.rows[b].end, p.seq_len[b]);
  if (begin >= end) {
    return result;
  }
  std::int64_t position = begin;
  for (std::int32_t i = 0; i < tile.tile; ++i) {
    position = next_tile(position, p.group);
  }
  const std::int64_t tile_end = next_tile(position, p.group);
  for (; position < std::min(end, tile_end); ++position) {
    const std::int64_t token = result.first_token + position;
    if (token >= 0 && token < p.tokens()) {
      result.positions.push_back(position);
    }
  }
  return result;
}

inline List expected_list(const Problem& p, const TileReference& tile, std::int64_t capacity) {
  const auto [positions, first_token] = rows_of(p, tile);
  List list;
  list.tile.request = tile.request;
  list.tile.rows = static_cast<std::int32_t>(positions.size());
  if (positions.empty()) {
    return list;
  }
  list.tile.token = static_cast<std::int32_t>(first_token + positions.front());
  const auto blocks =
      p.space == SelectionSpace::cache_slot ? blocks_of_pages(p, tile.request) : std::map<std::int64_t, std::int64_t>();
  std::vector<std::set<std::int64_t>> of_rows;
  std::set<std::int64_t> all;
  for (const std::int64_t position : positions) {
    of_rows.push_back(keys_of_row(p, tile.request, first_token + position, position, blocks));
    all.insert(of_rows.back().begin(), of_rows.back().end());
  }
  list.keys.assign(all.begin(), all.end());
  list.keys.resize(at(std::min(length(list.keys), capacity)));
  list.masks.resize(at(round_up(length(list.keys), kKeyBlock) / kKeyBlock * p.group));
  for (std::int64_t i = 0; i < length(list.keys); ++i) {
    for (std::int64_t g = 0; g < length(of_rows); ++g) {
      if (of_rows[at(g)].contains(list.keys[at(i)])) {
        list.masks[at(i / kKeyBlock * p.group + g)] |= std::uint64_t{1} << i % kKeyBlock;
      }
    }
  }
  list.keys.resize(at(round_up(length(list.keys), kKeyBlock)), -1);
  list.tile.blocks = static_cast<std::int32_t>(length(list.keys) / kKeyBlock);
  return list;
}

/// The lists of a problem, and the capacity that the longest needs.
struct Expected {
  std::vector<List> lists;
  std::int64_t capacity = 0;
};

inline Expected expected_lists(const Problem& p, std::int64_t most = std::int64_t{1} << 30) {
  Expected expected;
  for (const TileReference& tile : p.tiles) {
    expected.lists.push_back(expected_list(p, tile, most));
    expected.capacity = std::max(expected.capacity, length(expected.lists.back().keys));
  }
  return expected;
}

// ---- what the GPU makes ---------------------------------------------------------------------------------------------

/// Memory for lists between guards.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::int64_t size) : memory_(size + 2 * kGuard) { poison(); }

  void poison() const { memory_.bytes().fill(kPoison); }
  [[nodiscard]] T* data() const { return memory_.data() + kGuard; }
  /// The elements, having checked the guards.
  [[nodiscard]] std::vector<T> download() const {
    const std::vector<T> values = memory_.download();
    const auto bytes = std::as_bytes(std::span(values));
    const auto whole = [](std::span<const std::byte> guard) {
      return std::all_of(guard.begin(), guard.end(), [](std::byte b) { return b == kPoison; });
    };
    EXPECT_TRUE(whole(bytes.first(kGuard * sizeof(T))) && whole(bytes.last(kGuard * sizeof(T))));
    return {values.begin() + kGuard, values.end() - kGuard};
  }

 private:
  DeviceArray<T> memory_;
};

/// A problem on the device, and memory for its lists.
class ProblemOnDevice {
 public:
  ProblemOnDevice(const Problem& p, std::int64_t capacity)
      : capacity_(capacity),
        group_(p.group),
        query_start_(p.query_start),
        seq_len_(p.seq_len),
        block_table_(p.block_table),
        index_(p.index),
        count_(p.count),
        rows_(p.rows),
        references_(p.tiles),
        page_map_(p.requests() * map_entries(p)),
        tiles_(length(p.tiles)),
        keys_(length(p.tiles) * capacity),
        masks_(length(p.tiles) * (capacity / kKeyBlock) * p.group) {
    attention::mqa::load_union_lists();
    pass_.rule = p.rule;
    pass_.selection.index =
        View<const std::int32_t>(index_.data(), 2, {p.tokens(), p.width, 0, 0}, {p.row_stride, p.column_stride, 0, 0});
    if (!p.count.empty()) {
      pass_.selection.count = View<const std::int32_t>(count_.data(), {p.tokens()});
    }
    pass_.selection.space = p.space;
    pass_.requests = {View<const std::int32_t>(query_start_.data(), {p.requests() + 1}),
                      View<const std::int32_t>(seq_len_.data(), {p.requests()}),
                      View<const std::int32_t>(block_table_.data(), {p.requests(), p.table_width})};
    pass_.rows = View<const PathRows>(rows_.data(), {p.requests()});
    pass_.tiles = View<const TileReference>(references_.data(), {length(p.tiles)});
    pass_.group = p.group;
    pass_.tokens = p.tokens();
    pass_.keys_bound = kHuge;
    pass_.window_keys = p.window_keys;
    pass_.lists = {View<UnionTile>(tiles_.data(), {length(p.tiles)}),
                   View<std::int32_t>(keys_.data(), {length(p.tiles), capacity}),
                   View<std::uint64_t>(masks_.data(), {length(p.tiles), capacity / kKeyBlock, p.group})};
    if (p.space == SelectionSpace::cache_slot) {
      pass_.page_map.entries = View<std::uint64_t>(page_map_.data(), {p.requests(), map_entries(p)});
      pass_.page_size = p.page_size;
    }
    cache_.num_pages = p.num_pages;
    cache_.page_size = p.page_size;
  }

  void build(Stream stream) const {
    if (pass_.selection.space == SelectionSpace::cache_slot) {
      attention::cuda::build_page_map(cache_, pass_.requests, pass_.page_map, stream);
    }
    attention::mqa::build_union_lists(pass_, stream);
  }
  /// Another step's lengths and selection in the place of these, and nothing in the lists.
  void replace(const Problem& p) const {
    query_start_.upload(p.query_start);
    seq_len_.upload(p.seq_len);
    index_.upload(p.index);
    tiles_.poison();
    keys_.poison();
    masks_.poison();
  }
  void expect(const std::vector<List>& lists) const {
    const std::vector<UnionTile> tiles = tiles_.download();
    const std::vector<std::int32_t> keys = keys_.download();
    const std::vector<std::uint64_t> masks = masks_.download();
    for (std::int64_t t = 0; t < length(lists); ++t) {
      const List& list = lists[at(t)];
      const UnionTile& tile = tiles[at(t)];
      SCOPED_TRACE("list " + std::to_string(t) + " of " + std::to_string(lists.size()));
      ASSERT_EQ(tile.request, list.tile.request);
      ASSERT_EQ(tile.rows, list.tile.rows);
      ASSERT_EQ(tile.blocks, list.tile.blocks);
      if (tile.rows > 0) {
        ASSERT_EQ(tile.token, list.tile.token);
      }
      for (std::int64_t i = 0; i < length(list.keys); ++i) {
        ASSERT_EQ(keys[at(t * capacity_ + i)], list.keys[at(i)]) << "key " << i << " of " << list.keys.size();
      }
      for (std::int64_t i = 0; i < length(list.masks); ++i) {
        ASSERT_EQ(masks[at(t * (capacity_ / kKeyBlock) * group_ + i)], list.masks[at(i)])
            << "block " << i / group_ << " of " << list.tile.blocks << ", row " << i % group_ << " of "
            << list.tile.rows;
      }
    }
  }
  [[nodiscard]] const UnionPass& pass() const { return pass_; }

 private:
  static std::int64_t map_entries(const Problem& p) {
    return attention::cuda::page_map_entries(p.table_width * p.page_size, p.page_size);
  }

  std::int64_t capacity_;
  std::int64_t group_;
  DeviceArray<std::int32_t> query_start_;
  DeviceArray<std::int32_t> seq_len_;
  DeviceArray<std::int32_t> block_table_;
  DeviceArray<std::int32_t> index_;
  DeviceArray<std::int32_t> count_;
  DeviceArray<PathRows> rows_;
  DeviceArray<TileReference> references_;
  DeviceArray<std::uint64_t> page_map_;
  Guarded<UnionTile> tiles_;
  Guarded<std::int32_t> keys_;
  Guarded<std::uint64_t> masks_;
  UnionPass pass_;
  CacheView cache_;
};

/// @param spare  keys of a tile that the lists have room for and do not need
inline void expect_lists(const Problem& p, std::int64_t spare = 0) {
  SCOPED_TRACE(testing::PrintToString(p));
  const Expected expected = expected_lists(p);
  const ProblemOnDevice on_device(p, expected.capacity + spare);
  const device::cuda::OwnedStream stream;
  on_device.build(stream);
  device::cuda::synchronize(stream);
  on_device.expect(expected.lists);
}

// ---- random problems ------------------------------------------------------------------------------------------------

struct Shape {
  std::int64_t query_len = 0;
  std::int64_t context_len = 0;
};

inline std::vector<Shape> random_shapes(Random& random) {
  std::vector<Shape> shapes;
  for (std::int64_t n = 1 + random.below(5); n > 0; --n) {
    shapes.push_back({random.below(200), random.chance(0.3) ? 0 : random.below(500)});
  }
  return shapes;
}

/// Pages in random order, a request's first two now and then the same.
inline void place_pages(Problem& p, Random& random) {
  p.page_size = kPageSizes[random.below(3)];
  p.table_width = *std::max_element(p.seq_len.begin(), p.seq_len.end()) / p.page_size + 2;
  p.num_pages = p.table_width * p.requests() + 3;
  std::vector<std::int32_t> pages(at(p.num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  for (std::size_t i = pages.size(); i > 1; --i) {
    std::swap(pages[i - 1], pages[at(random.below(static_cast<std::int64_t>(i)))]);
  }
  p.block_table.assign(pages.begin(), pages.begin() + p.table_width * p.requests());
  for (std::int64_t b = 0; b < p.requests() && random.chance(0.3); ++b) {
    p.block_table[at(b * p.table_width + 1)] = p.block_table[at(b * p.table_width)];
  }
}

/// An entry of a row's selection: mostly a key of the request, else one that must be ignored.
inline std::int32_t random_entry(const Problem& p, Random& random, std::int64_t request, bool local) {
  const std::int64_t seq_len = std::max(1, p.seq_len[at(request)]);
  if (random.chance(0.1)) {
    const std::int32_t ignored[] = {-1, kLowest, kHuge, static_cast<std::int32_t>(-1 - random.below(500)),
                                    static_cast<std::int32_t>(seq_len + random.below(100))};
    return ignored[random.below(5)];
  }
  const std::int64_t key = local ? std::max<std::int64_t>(0, seq_len - 1 - random.below(100)) : random.below(seq_len);
  if (p.space == SelectionSpace::request_position) {
    return static_cast<std::int32_t>(key);
  }
  const std::int64_t page = p.block_table[at(request * p.table_width + key / p.page_size)];
  return static_cast<std::int32_t>(page * p.page_size + key % p.page_size);
}

inline void fill_selection(Problem& p, Random& random) {
  for (std::int64_t b = 0; b < p.requests(); ++b) {
    for (std::int64_t token = p.query_start[at(b)]; token < p.query_start[at(b + 1)]; ++token) {
      // Beside the entries, and behind the count, lie keys that would change the result.
      for (std::int64_t i = 0; i < p.row_stride; ++i) {
        p.index[at(token * p.row_stride + i)] = random_entry(p, random, b, false);
      }
      const bool local = random.chance(0.3);
      const bool nothing = random.chance(0.05);
      for (std::int64_t c = 0; c < p.width; ++c) {
        p.entry(token, c) = nothing ? -1 : random_entry(p, random, b, local);
      }
      if (!p.count.empty()) {
        p.count[at(token)] = random.chance(0.1)   ? kHuge
                             : random.chance(0.1) ? kLowest
                                                  : static_cast<std::int32_t>(random.below(p.width + 1));
      }
    }
  }
}

/// Rows of the path and tiles of requests, in any order, some that do not exist.
inline void place_tiles(Problem& p, Random& random, bool whole) {
  for (std::int64_t b = 0; b < p.requests(); ++b) {
    const std::int32_t seq_len = p.seq_len[at(b)];
    PathRows rows{0, seq_len + static_cast<std::int32_t>(random.below(5))};
    if (!whole) {
      rows.begin = static_cast<std::int32_t>(random.below(seq_len + 1));
      rows.end = rows.begin + static_cast<std::int32_t>(random.below(seq_len - rows.begin + 5));
    }
    p.rows.push_back(rows);
    const std::int64_t query_len = p.query_start[at(b + 1)] - p.query_start[at(b)];
    const std::int64_t tiles = attention::mqa::most_tiles(std::max<std::int64_t>(1, query_len), p.group);
    for (std::int64_t tile = 0; tile < tiles + 1; ++tile) {
      p.tiles.push_back({static_cast<std::int32_t>(b), static_cast<std::int32_t>(tile)});
    }
  }
  for (std::size_t i = p.tiles.size(); i > 1; --i) {
    std::swap(p.tiles[i - 1], p.tiles[at(random.below(static_cast<std::int64_t>(i)))]);
  }
}

inline Problem random_problem(Random& random, SelectionSpace space, std::int64_t group,
                              const std::vector<Shape>& shapes, std::int64_t width) {
  Problem p;
  p.rule = random_rule(random);
  p.space = space;
  p.group = group;
  p.window_keys = random.chance(0.3) ? 0 : 1 << random.below(18);
  p.query_start.push_back(0);
  for (const Shape& shape : shapes) {
    p.query_start.push_back(p.query_start.back() + static_cast<std::int32_t>(shape.query_len));
    p.seq_len.push_back(static_cast<std::int32_t>(shape.query_len + shape.context_len));
  }
  p.block_table.assign(p.seq_len.size(), 0);
  if (space == SelectionSpace::cache_slot) {
    place_pages(p, random);
  }
  p.width = width;
  p.column_stride = random.chance(0.2) ? 2 : 1;
  p.row_stride = width * p.column_stride + (random.chance(0.5) ? 4 * random.below(3) : random.below(6));
  const std::int64_t tokens = p.query_start.back();
  p.index.resize(at(tokens * p.row_stride));
  p.count.resize(random.chance(0.7) ? at(tokens) : 0);
  fill_selection(p, random);
  place_tiles(p, random, random.chance(0.3));
  return p;
}

inline std::int64_t random_width(Random& random) {
  return random.chance(0.1) ? 1 : random.chance(0.5) ? 4 * (1 + random.below(100)) : 1 + random.below(300);
}

}  // namespace headrace::test::union_list_kit
