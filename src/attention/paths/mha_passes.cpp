// SPDX-License-Identifier: Apache-2.0
#include "attention/paths/mha_passes.h"

#include <algorithm>
#include <limits>

#include "attention/paths/rounding.h"

namespace headrace::attention {
namespace {

using mha::sm90::kQueryTile;
using mha::sm90::QueryTile;

/// A slice of a request's rows with a block of its keys: what a pass has for one request.
struct Piece {
  const RowsOnPath& rows;
  std::int64_t first_row = 0;
  std::int64_t row_count = 0;
  std::int64_t keys_begin = 0;
  std::int64_t keys_end = 0;

  [[nodiscard]] std::int64_t keys() const noexcept { return keys_end - keys_begin; }
  [[nodiscard]] std::int64_t tiles() const noexcept { return round_up(row_count, kQueryTile) / kQueryTile; }
};

class PassBuilder {
 public:
  PassBuilder(std::int64_t requests, const PassCapacity& capacity, std::int64_t key_tile, bool masked, MhaPasses& to)
      : capacity_(capacity), key_tile_(key_tile), masked_(masked), result_(to) {
    to.clear();
    to.first_positions.resize(static_cast<std::size_t>(requests));
  }

  /// Adds a piece to the open pass where it fits, else to a new one.
  void add(const Piece& piece) {
    const std::int64_t rows = piece.tiles() * kQueryTile;
    if (open_ && (pass().keys + piece.keys() > capacity_.keys || has(piece.rows.request) ||
                  (masked_ && pass().slice_rows + rows > capacity_.slice_rows))) {
      close();
    }
    if (!open_) {
      open();
    }
    place(piece);
  }

  /// Adds a piece in a pass of its own that continues what earlier ones gave, or is continued by later ones.
  void add_alone(const Piece& piece, bool has_earlier, bool to_slice) {
    close();
    open();
    place(piece);
    pass().has_earlier = has_earlier;
    pass().to_slice = to_slice;
    close();
  }

  /// Tiles that see most keys go first, so that the last ones to finish are short; of those that see as many, the
  /// first request's.
  void close() {
    if (!open_) {
      return;
    }
    const auto first_of = [&](const QueryTile& tile) {
      return result_.first_positions[static_cast<std::size_t>(tile.request)] + tile.tile * kQueryTile;
    };
    std::sort(result_.tiles.begin() + pass().first_tile, result_.tiles.end(),
              [&](const QueryTile& a, const QueryTile& b) {
                const std::int64_t first_a = first_of(a);
                const std::int64_t first_b = first_of(b);
                return first_a != first_b ? first_a > first_b : a.request < b.request;
              });
    open_ = false;
  }

 private:
  [[nodiscard]] MhaPass& pass() { return result_.passes.back(); }
  /// Pieces come by ascending request.
  [[nodiscard]] bool has(std::int64_t request) { return request < pass().first_request + pass().num_spans; }

  void open() {
    MhaPass next;
    next.first_run = static_cast<std::int64_t>(result_.runs.size());
    next.first_span = static_cast<std::int64_t>(result_.spans.size());
    next.first_tile = static_cast<std::int64_t>(result_.tiles.size());
    result_.passes.push_back(next);
    open_ = true;
  }

  void place(const Piece& piece) {
    MhaPass& to = pass();
    const auto request = static_cast<std::int32_t>(piece.rows.request);
    result_.runs.push_back(
        {request, static_cast<std::int32_t>(piece.keys_begin), static_cast<std::int32_t>(piece.keys()), to.keys});
    ++to.num_runs;
    if (to.num_spans == 0) {
      to.first_request = piece.rows.request;
    }
    to.num_spans = piece.rows.request - to.first_request + 1;
    result_.spans.resize(static_cast<std::size_t>(to.first_span + to.num_spans));
    result_.spans.back() = {.rows_begin = static_cast<std::int32_t>(piece.rows.begin),
                            .rows_end = static_cast<std::int32_t>(piece.rows.end),
                            .first_row = static_cast<std::int32_t>(piece.first_row),
                            .row_count = static_cast<std::int32_t>(piece.row_count),
                            .keys_begin = static_cast<std::int32_t>(piece.keys_begin),
                            .keys_end = static_cast<std::int32_t>(piece.keys_end),
                            .first_key = to.keys,
                            .first_slice_row = to.slice_rows};
    for (std::int64_t tile = 0; tile < piece.tiles(); ++tile) {
      result_.tiles.push_back({request, static_cast<std::int32_t>(tile)});
    }
    to.num_tiles += piece.tiles();
    to.keys += piece.keys();
    to.key_tiles = std::max(to.key_tiles, round_up(piece.keys(), key_tile_) / key_tile_);
    to.slice_rows += piece.tiles() * kQueryTile;
    result_.first_positions[static_cast<std::size_t>(request)] = piece.rows.first_position + piece.first_row;
  }

  PassCapacity capacity_;
  std::int64_t key_tile_;
  bool masked_;
  bool open_ = false;
  MhaPasses& result_;
};

}  // namespace

void plan_mha_passes(std::span<const RowsOnPath> rows, std::int64_t requests, const PassCapacity& capacity,
                     std::int64_t key_tile, bool masked, MhaPasses& passes) {
  PassBuilder builder(requests, capacity, key_tile, masked, passes);
  for (const RowsOnPath& some : rows) {
    const bool whole = some.keys <= capacity.keys;
    const std::int64_t slice = whole && !masked ? std::numeric_limits<std::int64_t>::max() : capacity.slice_rows;
    for (std::int64_t first = 0; first < some.row_count;) {
      const std::int64_t count = std::min(slice, some.row_count - first);
      const std::int64_t keys_end = some.causal ? std::min(some.keys, some.first_position + first + count) : some.keys;
      if (whole) {
        builder.add({some, first, count, 0, keys_end});
      } else {
        for (std::int64_t key = 0; key < keys_end; key += capacity.keys) {
          const std::int64_t block_end = std::min(keys_end, key + capacity.keys);
          builder.add_alone({some, first, count, key, block_end}, key > 0, block_end < keys_end);
        }
      }
      first += count;
    }
  }
  builder.close();
}

}  // namespace headrace::attention
