// SPDX-License-Identifier: Apache-2.0
//
// Selections to bit masks, laid out by key tile for the flash-attention kernel.
//
// A block of 256 threads makes 8 rows of one request, a warp a row, in a window of at most 256 key tiles:
//   1. the warp clears its row's bitmap in shared memory, reads the row's selection four entries a lane and sets bits
//   by
//      atomics, columns in order (neighbouring entries that fall into one 32-bit word are joined first: sorted
//      selections are dense);
//   2. the block stores the window tile by tile, each thread a tile of a row: it puts the columns into the order in
//   which
//      the attention kernel's threads hold them, 40 instructions, and stores 16 bytes. 8 rows of a tile are contiguous.
// Windows are the grid's second dimension; a row's selection is read once for each.
// Shared memory: 8 * 257 * 16 bytes = 32.9 KB at most; an odd number of tiles a row keeps rows in different banks.
//
// Bytes: 4 a selected entry read, 16 a row and key tile written. 16,384 rows of 2,048 entries among 16,384 keys: 134 MB
// read; 54 MB written with tiles of 80, 34 MB with tiles of 128. Floor at 4.3 TB/s: 44 and 39 us. Shared-memory
// atomics, about 10 cycles for 128 entries of a warp, take some 12 us of every multiprocessor beside it, and the
// reordering 7 us. Budget: 65 and 60 us.

#include <algorithm>
#include <cstddef>
#include <limits>

#include "attention/mha/bit_mask_cuda.h"
#include "attention/selected_keys.cuh"
#include "device/cuda/check.cuh"
#include "device/cuda/launch.cuh"

namespace headrace::attention::cuda {
namespace {

using mha::sm90::kMaskWords;
using mha::sm90::kQueryTile;
using mha::sm90::RequestSpan;

constexpr int kRows = 8;  // of a block: one a warp
constexpr int kThreads = kRows * kWarp;
constexpr int kWindowTiles = 256;
static_assert(kQueryTile % kRows == 0 && kMaskWords * sizeof(std::uint32_t) == sizeof(uint4));

/// An entry of a page map.
[[nodiscard]] __host__ __device__ constexpr unsigned long long pack_entry(std::uint32_t page, std::uint32_t block) {
  return static_cast<unsigned long long>(page) << 32 | block;
}

struct PageMapParams {
  const std::int32_t* seq_len;
  const std::int32_t* block_table;
  std::int64_t seq_len_stride;
  std::int64_t table_row_stride;
  std::int64_t table_stride;
  std::int64_t table_width;
  std::int64_t num_pages;
  std::int64_t page_size;
  std::uint64_t* entries;
  std::uint32_t num_entries;
};

__global__ void __launch_bounds__(kThreads) page_map_kernel(const PageMapParams p) {
  const std::int64_t request = blockIdx.y;
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t seq_len = p.seq_len[request * p.seq_len_stride];
  // Half of the entries stay free, so that every search ends.
  if (block * p.page_size >= seq_len || block >= p.table_width || block >= p.num_entries / 2) {
    return;
  }
  const std::int64_t page = p.block_table[request * p.table_row_stride + block * p.table_stride];
  if (page < 0 || page >= p.num_pages) {
    return;
  }
  auto* entries = reinterpret_cast<unsigned long long*>(p.entries) + request * p.num_entries;
  const auto own = pack_entry(static_cast<std::uint32_t>(page), static_cast<std::uint32_t>(block));
  for (std::uint32_t i = hash(static_cast<std::uint32_t>(page), p.num_entries);;
       i = i + 1 == p.num_entries ? 0 : i + 1) {
    const unsigned long long before = atomicCAS(entries + i, kNoEntry, own);
    if (before == kNoEntry) {
      return;
    }
    if (before >> 32 == own >> 32) {
      atomicMin(entries + i, own);
      return;
    }
  }
}

struct MaskParams {
  SelectedKeys selected;
  const RequestSpan* spans;
  std::int64_t first_request;
  std::int64_t num_spans;
  uint4* mask;
  std::int64_t mask_rows;
  std::int32_t tiles;
  std::int32_t window_tiles;
};

/// What a block works on, found by whichever thread holds the request that owns its rows.
struct BlockWork {
  std::int32_t request;
  std::int32_t row;         // the block's first row among the span's query rows
  cache::RequestRows rows;  // of the span
  std::int32_t key_begin;
  std::int32_t key_end;
};

/// Looks for the request whose rows of the mask hold `mask_row`; false where none does.
__device__ bool find_work(const MaskParams& p, std::int64_t mask_row, BlockWork& found) {
  bool any = false;
  for (std::int64_t i = threadIdx.x; i < p.num_spans; i += kThreads) {
    const std::int64_t b = p.first_request + i;
    const RequestSpan span = p.spans[i];
    const cache::RequestRows rows = mha::sm90::rows_of(span, p.selected.rows_of(b));
    const std::int64_t row = mask_row - span.first_slice_row;
    if (row >= 0 && row < (rows.count() + kQueryTile - 1) / kQueryTile * kQueryTile) {
      found = {static_cast<std::int32_t>(b), static_cast<std::int32_t>(row), rows, span.keys_begin,
               min(span.keys_end, p.selected.keys_of(b))};
      any = true;
    }
  }
  return any;
}

/// Exchanges the bits of `mask` with those `distance` above them.
template <int kDistance, std::uint32_t kMask>
__device__ std::uint32_t exchange(std::uint32_t word) {
  const std::uint32_t changed = (word >> kDistance ^ word) & kMask;
  return word ^ changed ^ changed << kDistance;
}

/// A key tile of a row, columns in order, as the attention kernel reads it: column 8 j + 2 i + c becomes bit 2 j + c of
/// word i. In a word first, the numbers of bits are permuted, so that byte i has the columns of word i; then the bytes
/// are sorted by word.
__device__ uint4 to_accumulator_order(uint4 tile) {
  const auto sort_bits = [](std::uint32_t word) { return exchange<6, 0x00cc00ccU>(exchange<12, 0x0000f0f0U>(word)); };
  const std::uint32_t a = sort_bits(tile.x);
  const std::uint32_t b = sort_bits(tile.y);
  const std::uint32_t c = sort_bits(tile.z);
  const std::uint32_t d = sort_bits(tile.w);
  const std::uint32_t ab_low = __byte_perm(a, b, 0x5140);
  const std::uint32_t cd_low = __byte_perm(c, d, 0x5140);
  const std::uint32_t ab_high = __byte_perm(a, b, 0x7362);
  const std::uint32_t cd_high = __byte_perm(c, d, 0x7362);
  return {__byte_perm(ab_low, cd_low, 0x5410), __byte_perm(ab_low, cd_low, 0x7632),
          __byte_perm(ab_high, cd_high, 0x5410), __byte_perm(ab_high, cd_high, 0x7632)};
}

/// Tiles from a row of a window to the next in shared memory.
__host__ __device__ constexpr int row_pitch(int window_tiles) { return window_tiles | 1; }

template <int kKeyTile, bool kVector, bool kSlots>
__global__ void __launch_bounds__(kThreads) bit_mask_kernel(const MaskParams p) {
  auto* window = device::cuda::dynamic_shared<uint4>();
  __shared__ BlockWork work;

  const std::int64_t mask_row = static_cast<std::int64_t>(blockIdx.x) * kRows;
  BlockWork found{};
  const bool mine = find_work(p, mask_row, found);
  if (mine) {
    work = found;
  }
  if (__syncthreads_or(static_cast<int>(mine)) == 0) {
    return;
  }

  const int first_tile = static_cast<int>(blockIdx.y) * p.window_tiles;
  const int tiles = min(p.window_tiles, p.tiles - first_tile);
  const int pitch = row_pitch(p.window_tiles);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;

  const std::int32_t row = work.row + warp;
  const std::int64_t position = std::int64_t{work.rows.begin} + row;
  const std::int64_t token = std::int64_t{work.rows.token()} + row;
  const bool exists = row < work.rows.count();
  const bool covered = exists && p.selected.coverage.covers(position);
  const std::int64_t window_begin = static_cast<std::int64_t>(work.key_begin) + std::int64_t{first_tile} * kKeyTile;
  const std::int64_t visible_end =
      covered || !kSlots ? min(std::int64_t{work.key_end}, position + 1) : std::int64_t{work.key_end};
  const std::int64_t visible = min(std::int64_t{tiles} * kKeyTile, exists ? visible_end - window_begin : 0);
  const RowBits<kKeyTile, static_cast<int>(kMaskWords)> bits(reinterpret_cast<std::uint32_t*>(window + warp * pitch),
                                                             static_cast<std::uint32_t>(window_begin),
                                                             static_cast<std::uint32_t>(max(std::int64_t{0}, visible)));
  for (int i = lane; i < tiles * static_cast<int>(kMaskWords); i += kWarp) {
    bits.assign(i, covered);
  }
  __syncwarp();
  if (visible > 0 && !covered) {
    read_selection<kVector, kSlots>(p.selected, work.request, token, lane, kWarp,
                                    [&](const std::int32_t(&keys)[4]) { bits.set(keys); });
  }
  __syncthreads();

  for (int i = static_cast<int>(threadIdx.x); i < tiles * kRows; i += kThreads) {
    const int tile = i / kRows;
    const int r = i % kRows;
    p.mask[(std::int64_t{first_tile} + tile) * p.mask_rows + mask_row + r] =
        to_accumulator_order(window[r * pitch + tile]);
  }
}

using MaskKernel = void (*)(MaskParams);

template <int kKeyTile>
MaskKernel kernel_for(bool vector, bool slots) {
  return slots ? (vector ? bit_mask_kernel<kKeyTile, true, true> : bit_mask_kernel<kKeyTile, false, true>)
               : (vector ? bit_mask_kernel<kKeyTile, true, false> : bit_mask_kernel<kKeyTile, false, false>);
}

template <int kKeyTile>
void launch(const MaskParams& params, bool vector, bool slots, Stream stream) {
  const MaskKernel kernel = kernel_for<kKeyTile>(vector, slots);
  MaskParams p = params;
  p.window_tiles = std::min(p.tiles, kWindowTiles);
  const auto bytes = static_cast<std::size_t>(kRows * row_pitch(p.window_tiles)) * sizeof(uint4);
  const dim3 grid(static_cast<unsigned>(p.mask_rows / kRows),
                  static_cast<unsigned>((p.tiles + p.window_tiles - 1) / p.window_tiles));
  device::cuda::launch("bit masks", kernel, grid, kThreads, bytes, stream, p);
}

void validate(const MaskPass& pass) {
  expect(pass.key_tile == 64 || pass.key_tile == 80 || pass.key_tile == 128, "key_tile", "64, 80 or 128",
         pass.key_tile);
  const std::int64_t requests = pass.requests.seq_len.dim(0);
  pass.spans.expect("spans", {-1});
  const std::int64_t spans = pass.spans.dim(0);
  expect(pass.first_request >= 0 && pass.first_request <= requests - spans, "spans", "of requests of the step", spans);
  expect(spans <= 1 || pass.spans.stride(0) == 1, "spans", "contiguous entries", pass.spans.stride(0));
  pass.mask.expect("mask", {-1, -1, kMaskWords});
  const std::int64_t rows = pass.mask.dim(1);
  expect(rows % kQueryTile == 0, "mask", "a multiple of 128 rows", rows);
  expect(pass.mask.stride(2) == 1 && pass.mask.stride(1) == kMaskWords && pass.mask.stride(0) == rows * kMaskWords,
         "mask", "contiguous words", pass.mask.stride(0));
  expect(reinterpret_cast<std::uintptr_t>(pass.mask.data()) % alignof(uint4) == 0, "mask", "an address divisible by 16",
         static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(pass.mask.data()) % alignof(uint4)));
  expect(pass.mask.dim(0) <= std::numeric_limits<std::int32_t>::max() / pass.key_tile, "mask", "fewer than 2^31 keys",
         pass.mask.dim(0) * pass.key_tile);
}

}  // namespace

void load_bit_masks() {
  device::cuda::load(page_map_kernel);
  for (const bool vector : {false, true}) {
    for (const bool slots : {false, true}) {
      device::cuda::load(kernel_for<64>(vector, slots));
      device::cuda::load(kernel_for<80>(vector, slots));
      device::cuda::load(kernel_for<128>(vector, slots));
    }
  }
}

void build_page_map(const CacheView& cache, const Requests& requests, const PageMap& map, Stream stream) {
  requests.seq_len.expect("seq_len", {-1});
  const std::int64_t count = requests.seq_len.dim(0);
  requests.block_table.expect("block_table", {count, -1});
  map.entries.expect("page_map", {count, -1});
  const std::int64_t entries = map.entries.dim(1);
  expect(entries >= 2 && entries <= std::numeric_limits<std::uint32_t>::max(), "page_map", "2 to 2^32 - 1 entries",
         entries);
  expect(map.entries.stride(0) == entries && map.entries.stride(1) == 1, "page_map", "contiguous entries",
         map.entries.stride(0));
  if (count == 0) {
    return;
  }
  const PageMapParams params{
      .seq_len = requests.seq_len.data(),
      .block_table = requests.block_table.data(),
      .seq_len_stride = requests.seq_len.stride(0),
      .table_row_stride = requests.block_table.stride(0),
      .table_stride = requests.block_table.stride(1),
      .table_width = requests.block_table.dim(1),
      .num_pages = cache.num_pages,
      .page_size = cache.page_size,
      .entries = map.entries.data(),
      .num_entries = static_cast<std::uint32_t>(entries),
  };
  device::cuda::check(cudaMemsetAsync(map.entries.data(), 0xff, static_cast<std::size_t>(count * entries) * 8,
                                      device::cuda::native(stream)),
                      "cudaMemsetAsync");
  const dim3 grid(static_cast<unsigned>((entries / 2 + kThreads - 1) / kThreads), static_cast<unsigned>(count));
  device::cuda::launch("page map", page_map_kernel, grid, kThreads, 0, stream, params);
}

void build_bit_masks(const MaskPass& pass, Stream stream) {
  const SelectedKeys selected(pass.rule, pass.selection, pass.requests, pass.page_map, pass.page_size);
  validate(pass);
  if (pass.mask.dim(0) == 0 || pass.mask.dim(1) == 0 || pass.requests.seq_len.dim(0) == 0) {
    return;
  }
  const MaskParams params{
      .selected = selected,
      .spans = pass.spans.data(),
      .first_request = pass.first_request,
      .num_spans = pass.spans.dim(0),
      .mask = reinterpret_cast<uint4*>(pass.mask.data()),
      .mask_rows = pass.mask.dim(1),
      .tiles = static_cast<std::int32_t>(pass.mask.dim(0)),
      .window_tiles = 0,
  };
  const bool vector = selected.is_vector();
  const bool slots = pass.selection.space == SelectionSpace::cache_slot;
  switch (pass.key_tile) {
    case 64:
      return launch<64>(params, vector, slots, stream);
    case 80:
      return launch<80>(params, vector, slots, stream);
    default:
      return launch<128>(params, vector, slots, stream);
  }
}

}  // namespace headrace::attention::cuda
