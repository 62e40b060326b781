// SPDX-License-Identifier: Apache-2.0
//
// Selections to union lists: what the rows of a tile attend to together, and which row attends to what.
//
// A block of 256 threads, or of 128 for one or two rows, makes a tile's list, in windows of as many keys as its shared
// memory has bitmaps for:
//   1. a bitmap for each row is cleared and the row's selection read, four entries a lane, bits being set by atomics.
//      Warps share the rows; of fewer than 8 rows, several warps share one's columns. Covered rows set all causal bits;
//   2. the warps share the window's words, a run each. The rows' words are joined, their bits counted and the counts
//      summed over the block, so that each warp knows the rank of its first key. Then 32 words at a time: a scan gives
//      each lane its ranks, it puts the keys of its word into the warp's stage, and the warp stores the stage;
//   3. for 64 ranks at a time a warp reads the keys back, two a lane, tests each row's bits and joins them by ballots;
//      lane g stores the mask of row g. Where 64 ranks began in an earlier window, their masks are joined with what
//      that one wrote. A single row has every key of its list: no key is tested.
// A row's selection is read once for each window.
// Shared memory: a stage of 2 KB for each warp, and a bitmap of the longest request's keys for each row of a group, 96
// KB at most: 40 warps a multiprocessor (registers allow no more) while the bitmaps take no more than 27 KB, as those
// of 8 rows and 16,384 keys do; 16 at worst. The rows that a tile really has share the bitmaps. Lanes of a warp read
// neighbouring words of one row: no pitch is needed.
//
// Bytes: 4 a selected entry read; 4 a key of a union and 8 a row and 64 keys written. 16,384 rows of 2,048 entries
// among 16,384 keys: 134 MB read; in tiles of 4 rows whose unions have 5,000 keys each, 82 + 10 MB written. Floor
// at 4.1 TB/s: 33 + 22 us. Instructions of a warp for such a tile: 64 times 128 entries at 45 each, 2.9 thousand;
// clearing, joining and counting 1.2; 16 times 32 words to keys at 200 each, 3.2; 79 masks of 4 rows at 76 each, 6.0.
// With the rest 14 thousand, 31 tiles a multiprocessor, 4 instructions a cycle: 62 us at 1.75 GHz. A single row's tile
// takes 3.5 thousand, 124 of them 62 us. Neither bound overlaps wholly with the other.
// Budget: 120 us.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "attention/mqa/union_list.h"
#include "attention/selected_keys.cuh"
#include "device/cuda/launch.cuh"

namespace headrace::attention::mqa {
namespace {

using cuda::expect;
using cuda::kWarp;
using cuda::SelectedKeys;

/// Warps of a block: fewer for a tile of few rows, whose work would be lost among what each warp does for itself.
constexpr std::int64_t kFewRows = 2;
constexpr int kWarpsOfFew = 4;
constexpr int kWarpsOfMany = 8;
constexpr int kWarpsAtOnce = 40;  // of a multiprocessor: registers allow no more
constexpr int kWordBits = 32;
constexpr int kStage = kWarp * kWordBits;  // keys of a warp's 32 words
constexpr int kBlock = static_cast<int>(kKeyBlock);
constexpr unsigned kAllLanes = ~0U;

constexpr std::int64_t kLeastBytes = 4 * 1024;
constexpr std::int64_t kMostBytes = 96 * 1024;
constexpr std::int64_t kMostRows = 64;

using WindowBits = cuda::RowBits<kWordBits, 1>;

struct UnionParams {
  SelectedKeys selected;
  const PathRows* rows;
  const TileReference* references;
  UnionTile* tiles;
  std::int32_t* keys;
  std::uint64_t* masks;
  std::int64_t capacity;
  std::int32_t group;
  std::int32_t bitmap_words;
  std::int32_t keys_bound;
  std::int32_t* counter;
};

/// A tile and where its list goes. It lies in shared memory: reading selections takes most registers.
struct Tile {
  std::int32_t request;
  std::int32_t token;     // of its first row
  std::int32_t position;  // likewise; the others follow
  std::int32_t rows;
  std::int32_t visible;  // keys [0, visible) hold all that its rows attend to
  std::int32_t window_words;
  std::int32_t* keys;
  std::uint64_t* masks;
};

/// What the exact lengths make of the block's tile. Whatever they are, its rows are rows of the selection.
template <bool kSlots>
__device__ Tile find_tile(const UnionParams& p) {
  const TileReference tile = p.references[blockIdx.x];
  std::int32_t* keys = p.keys + blockIdx.x * p.capacity;
  std::uint64_t* masks = p.masks + blockIdx.x * (p.capacity / kBlock) * p.group;
  const Tile none{tile.request, 0, 0, 0, 0, p.bitmap_words, keys, masks};
  if (tile.request < 0 || tile.request >= p.selected.num_requests || tile.tile < 0) {
    return none;
  }
  const PathRows path = p.rows[tile.request];
  const cache::RequestRows of_path = p.selected.rows_of(tile.request).within(path.begin, path.end);
  const std::int64_t number = tile_of(of_path.begin, p.group) + tile.tile;
  const cache::RequestRows rows =
      of_path.within(cache::as_length(tile_begin(number, p.group)), cache::as_length(tile_end(number, p.group)));
  if (rows.count() == 0) {
    return none;
  }
  return {tile.request,
          rows.token(),
          rows.begin,
          rows.count(),
          kSlots ? min(p.selected.keys_of(tile.request), p.keys_bound) : rows.end,
          p.bitmap_words / rows.count(),
          keys,
          masks};
}

/// Keys [first, first + 32 * words) of a tile: a bitmap for each row, one after the other.
struct Window {
  std::uint32_t* bits;
  std::int32_t first;
  int words;
  int rows;

  [[nodiscard]] __device__ const std::uint32_t* row(int r) const { return bits + r * words; }
  /// Keys 32 * word + i of any row.
  [[nodiscard]] __device__ std::uint32_t joined(int word) const {
    std::uint32_t all = 0;
    for (int r = 0; r < rows; ++r) {
      all |= row(r)[word];
    }
    return all;
  }
};

/// The words of a window that a warp makes keys of; runs of warps follow each other.
template <int kWarps>
struct Run {
  int begin;
  int end;

  __device__ Run(const Window& window, int warp) {
    constexpr int kUnit = kWarps * kWarp;
    const int length = (window.words + kUnit - 1) / kUnit * kWarp;
    begin = min(window.words, warp * length);
    end = min(window.words, begin + length);
  }
};

/// Sets the bits of a window's rows.
template <int kWarps, bool kVector, bool kSlots>
__device__ void fill(const SelectedKeys& selected, const Tile& tile, const Window& window, int warp, int lane) {
  for (int i = static_cast<int>(threadIdx.x); i < window.rows * window.words; i += kWarps * kWarp) {
    window.bits[i] = 0;
  }
  __syncthreads();
  const int sharers = max(1, kWarps / window.rows);
  if (warp / window.rows >= sharers) {
    return;
  }
  const int lanes = sharers * kWarp;
  const int own = warp / window.rows * kWarp + lane;
  for (int r = warp % window.rows; r < window.rows; r += kWarps) {
    const std::int32_t position = tile.position + r;
    const bool covered = selected.coverage.covers(position);
    const std::int32_t visible = (covered || !kSlots ? position + 1 : tile.visible) - window.first;
    const WindowBits bits(window.bits + r * window.words, static_cast<std::uint32_t>(window.first),
                          static_cast<std::uint32_t>(max(0, min(visible, window.words * kWordBits))));
    if (covered) {
      for (int i = own; i < window.words; i += lanes) {
        bits.assign(i, true);
      }
    } else if (visible > 0) {
      cuda::read_selection<kVector, kSlots>(selected, tile.request, std::int64_t{tile.token} + r, own, lanes,
                                            [&](const std::int32_t(&keys)[4]) { bits.set(keys); });
    }
  }
}

/// Keys of a warp's run, in every lane.
template <int kWarps>
__device__ std::uint32_t count_keys(const Window& window, const Run<kWarps>& run, int lane) {
  std::uint32_t count = 0;
  for (int word = run.begin + lane; word < run.end; word += kWarp) {
    count += static_cast<std::uint32_t>(__popc(window.joined(word)));
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    count += __shfl_xor_sync(kAllLanes, count, distance);
  }
  return count;
}

/// Stores the keys of a warp's run, ascending, from keys[rank] on; those at `capacity` and beyond are left out.
template <int kWarps>
__device__ void store_keys(const Window& window, const Run<kWarps>& run, std::uint32_t rank, std::uint32_t capacity,
                           int lane, std::uint16_t* stage, std::int32_t* keys) {
  for (int first = run.begin; first < run.end; first += kWarp) {
    const int own = first + lane;
    std::uint32_t word = own < run.end ? window.joined(own) : 0;
    const int count = __popc(word);
    int end = count;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int before = __shfl_up_sync(kAllLanes, end, distance);
      end += lane >= distance ? before : 0;
    }
    const int total = __shfl_sync(kAllLanes, end, kWarp - 1);
    for (int i = end - 1; word != 0; --i) {  // from the highest bit down
      const int bit = kWordBits - 1 - __clz(static_cast<int>(word));
      word ^= 1U << bit;
      stage[i] = static_cast<std::uint16_t>(lane * kWordBits + bit);
    }
    __syncwarp();
    const std::int32_t first_key = window.first + first * kWordBits;
    for (int i = lane; i < total; i += kWarp) {
      const std::uint32_t at = rank + static_cast<std::uint32_t>(i);
      if (at < capacity) {
        keys[at] = first_key + stage[i];
      }
    }
    __syncwarp();
    rank += static_cast<std::uint32_t>(total);
  }
}

/// Stores the masks of ranks [begin, end), whose keys are the window's.
template <int kWarps>
__device__ void store_masks(const Window& window, std::uint32_t begin, std::uint32_t end, int group, int warp, int lane,
                            const std::int32_t* keys, std::uint64_t* masks) {
  for (std::uint32_t b = begin / kBlock + static_cast<std::uint32_t>(warp); b * kBlock < end; b += kWarps) {
    int word[2];
    std::uint32_t bit[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t rank = b * kBlock + static_cast<std::uint32_t>(half * kWarp + lane);
      const bool inside = rank >= begin && rank < end;
      const int key = inside ? keys[rank] - window.first : 0;
      word[half] = key / kWordBits;
      bit[half] = inside ? 1U << key % kWordBits : 0;
    }
    for (int first = 0; first < group; first += kWarp) {
      std::uint32_t low = 0;
      std::uint32_t high = 0;
#pragma unroll 4
      for (int r = first; r < min(first + kWarp, window.rows); ++r) {
        const std::uint32_t* row = window.row(r);
        const std::uint32_t row_low = __ballot_sync(kAllLanes, (row[word[0]] & bit[0]) != 0);
        const std::uint32_t row_high = __ballot_sync(kAllLanes, (row[word[1]] & bit[1]) != 0);
        if (lane == r - first) {
          low = row_low;
          high = row_high;
        }
      }
      if (first + lane < group) {
        std::uint64_t* mask = masks + std::int64_t{b} * group + first + lane;
        const std::uint64_t earlier = b * kBlock < begin ? *mask : 0;
        *mask = earlier | std::uint64_t{high} << 32 | low;
      }
    }
  }
}

/// Stores the masks of `total` keys that the tile's only row has.
template <int kWarps>
__device__ void store_full_masks(std::uint32_t total, std::uint32_t blocks, int group, std::uint64_t* masks) {
  for (std::int64_t i = threadIdx.x; i < std::int64_t{blocks} * group; i += kWarps * kWarp) {
    const std::uint32_t left = total - static_cast<std::uint32_t>(i / group) * kBlock;
    const std::uint64_t full = left >= kBlock ? ~std::uint64_t{0} : (std::uint64_t{1} << left) - 1;
    masks[i] = i % group == 0 ? full : 0;
  }
}

template <int kWarps, bool kVector, bool kSlots>
__global__ void __launch_bounds__(kWarps* kWarp, kWarpsAtOnce / kWarps) union_list_kernel(const UnionParams p) {
  auto* bitmaps = device::cuda::dynamic_shared<std::uint32_t>();
  __shared__ std::uint16_t stages[kWarps][kStage];
  __shared__ std::uint32_t counts[kWarps];
  __shared__ Tile tile;

  if (threadIdx.x == 0) {
    tile = find_tile<kSlots>(p);
    if (p.counter != nullptr && blockIdx.x == 0) {
      *p.counter = 0;
    }
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto capacity = static_cast<std::uint32_t>(p.capacity);

  std::uint32_t total = 0;
  std::uint32_t first = 0;  // unsigned: a window may end beyond 2^31
  while (first < static_cast<std::uint32_t>(tile.visible) && total < capacity) {
    const std::uint32_t left = static_cast<std::uint32_t>(tile.visible) - first;
    const int words = min(static_cast<int>((left + kWordBits - 1) / kWordBits), tile.window_words);
    const Window window{bitmaps, static_cast<std::int32_t>(first), words, tile.rows};
    fill<kWarps, kVector, kSlots>(p.selected, tile, window, warp, lane);
    __syncthreads();

    const Run<kWarps> run(window, warp);
    const std::uint32_t count = count_keys(window, run, lane);
    if (lane == 0) {
      counts[warp] = count;
    }
    __syncthreads();
    const std::uint32_t begin = total;
    std::uint32_t rank = total;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      rank += w < warp ? counts[w] : 0;
      total += counts[w];
    }
    total = min(total, capacity);
    store_keys(window, run, rank, capacity, lane, stages[warp], tile.keys);
    __syncthreads();
    if (tile.rows > 1) {
      store_masks<kWarps>(window, begin, total, p.group, warp, lane, tile.keys, tile.masks);
      __syncthreads();
    }
    first += static_cast<std::uint32_t>(tile.window_words) * kWordBits;
  }

  const std::uint32_t blocks = (total + kBlock - 1) / kBlock;
  if (tile.rows == 1) {
    store_full_masks<kWarps>(total, blocks, p.group, tile.masks);
  }
  for (std::uint32_t i = total + threadIdx.x; i < blocks * kBlock; i += kWarps * kWarp) {
    tile.keys[i] = -1;
  }
  if (threadIdx.x == 0) {
    p.tiles[blockIdx.x] = {tile.request, tile.token, tile.rows, static_cast<std::int32_t>(blocks)};
  }
}

using Kernel = void (*)(UnionParams);

template <int kWarps>
Kernel kernel_of(bool vector, bool slots) {
  return slots ? (vector ? union_list_kernel<kWarps, true, true> : union_list_kernel<kWarps, false, true>)
               : (vector ? union_list_kernel<kWarps, true, false> : union_list_kernel<kWarps, false, false>);
}

int warps_for(std::int64_t group) { return group <= kFewRows ? kWarpsOfFew : kWarpsOfMany; }

Kernel kernel_for(int warps, bool vector, bool slots) {
  return warps == kWarpsOfFew ? kernel_of<kWarpsOfFew>(vector, slots) : kernel_of<kWarpsOfMany>(vector, slots);
}

template <class T>
void expect_contiguous(const char* name, const View<T>& view, std::initializer_list<std::int64_t> shape) {
  view.expect(name, shape);
  std::int64_t step = 1;
  for (int i = view.rank() - 1; i >= 0; --i) {
    expect(view.dim(i) <= 1 || view.stride(i) == step, name, "contiguous entries", view.stride(i));
    step *= view.dim(i);
  }
}

void validate(const UnionPass& pass) {
  const std::int64_t tiles = pass.tiles.dim(0);
  const std::int64_t capacity = pass.lists.keys.dim(1);
  expect(pass.group >= 1 && pass.group <= kMostRows, "group", "1 to 64 rows", pass.group);
  expect(pass.keys_bound >= 0 && pass.keys_bound <= std::numeric_limits<std::int32_t>::max(), "keys_bound",
         "0 to 2^31 - 1 keys", pass.keys_bound);
  expect_contiguous("rows", pass.rows, {pass.requests.seq_len.dim(0)});
  expect_contiguous("tiles", pass.tiles, {-1});
  expect(tiles <= std::numeric_limits<std::int32_t>::max(), "tiles", "fewer than 2^31", tiles);
  expect_contiguous("lists.tiles", pass.lists.tiles, {tiles});
  expect_contiguous("lists.keys", pass.lists.keys, {tiles, -1});
  expect(capacity % kKeyBlock == 0 && capacity <= std::numeric_limits<std::int32_t>::max(), "lists.keys",
         "a multiple of 64 and fewer than 2^31 keys a tile", capacity);
  expect_contiguous("lists.masks", pass.lists.masks, {tiles, capacity / kKeyBlock, pass.group});
}

}  // namespace

void load_union_lists() {
  for (const int warps : {kWarpsOfFew, kWarpsOfMany}) {
    for (const bool vector : {false, true}) {
      for (const bool slots : {false, true}) {
        device::cuda::allow_shared_memory(kernel_for(warps, vector, slots), kMostBytes);
      }
    }
  }
}

void build_union_lists(const UnionPass& pass, Stream stream) {
  SelectedKeys selected(pass.rule, pass.selection, pass.requests, pass.page_map, pass.page_size);
  selected.tokens = std::min(selected.tokens, cache::as_length(pass.tokens));
  validate(pass);
  if (pass.tiles.dim(0) == 0) {
    return;
  }
  const std::int64_t window = pass.window_keys > 0 ? pass.window_keys : pass.keys_bound;
  const std::int64_t words = (window + kWordBits - 1) / kWordBits;
  const std::int64_t bytes = std::clamp<std::int64_t>(pass.group * words * 4, kLeastBytes, kMostBytes);
  const UnionParams params{
      .selected = selected,
      .rows = pass.rows.data(),
      .references = pass.tiles.data(),
      .tiles = pass.lists.tiles.data(),
      .keys = pass.lists.keys.data(),
      .masks = pass.lists.masks.data(),
      .capacity = pass.lists.keys.dim(1),
      .group = static_cast<std::int32_t>(pass.group),
      .bitmap_words = static_cast<std::int32_t>(bytes) / static_cast<std::int32_t>(sizeof(std::uint32_t)),
      .keys_bound = static_cast<std::int32_t>(pass.keys_bound),
      .counter = pass.counter,
  };
  const int warps = warps_for(pass.group);
  const Kernel kernel = kernel_for(warps, selected.is_vector(), pass.selection.space == SelectionSpace::cache_slot);
  device::cuda::launch("union lists", kernel, static_cast<unsigned>(pass.tiles.dim(0)), warps * kWarp,
                       static_cast<std::size_t>(bytes), stream, params);
}

}  // namespace headrace::attention::mqa
