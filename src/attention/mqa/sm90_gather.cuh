// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cutlass/arch/memory_sm80.h>
#include <cutlass/fast_math.h>

#include <type_traits>

#include "attention/mqa/sm90_tile.cuh"
#include "cache/lane_values.cuh"

/// What the producer of the top-k MQA kernel does: takes tiles from the queue, gathers their queries and keys.
namespace headrace::attention::mqa::sm90 {

/// Entry `index` of the queue. Tiles come last first: of a request the last ones have most keys.
__device__ inline TileWork describe(const Params& p, std::int32_t index) {
  TileWork work{};
  if (index >= p.num_tiles * p.parts) {
    work.index = -1;
    return work;
  }
  work.index = p.num_tiles - 1 - index / p.parts;
  work.first_head = index % p.parts * kRows;
  const UnionTile tile = p.tiles[work.index];
  const std::int64_t row = p.rows_are_tokens ? tile.token : static_cast<std::int64_t>(work.index) * p.group;
  work.first_row = row * p.heads + work.first_head;
  work.rows = p.parts == 1 ? tile.rows * p.heads : tile.rows * min(kRows, p.heads - work.first_head);
  work.token = tile.token;
  work.request = tile.request;
  work.blocks = tile.rows > 0 ? tile.blocks : 0;
  return work;
}

/// Eight threads of the producer copy a row of a column block; sixteen rows at once, four times.
inline constexpr int kRowsAtOnce = kWarpGroup / kChunks;
inline constexpr int kRowsAThread = kRows / kRowsAtOnce;

/// Rows of memory that belong to a thread's rows of a tile. Where there is none, zeros are wanted, and `data` is an
/// address that may be formed.
struct SourceRows {
  const std::byte* data[kRowsAThread];
  bool exists[kRowsAThread];
};

/// Copies the thread's 16 bytes of each of its rows of a column block.
__device__ inline void copy_column_block(std::byte* to, const SourceRows& rows, int offset) {
#pragma unroll
  for (int i = 0; i < kRowsAThread; ++i) {
    cutlass::arch::cp_async_zfill<kChunkBytes, cutlass::arch::CacheOperation::Global>(
        to + i * kRowsAtOnce * kRowBytes, rows.data[i] + offset, rows.exists[i]);
  }
}

/// Finds the rows of a tile's keys, block after block. A lane finds one of the sixteen rows that its warp copies (the
/// upper half of a warp does what the lower does) and the warp exchanges them. Positions are read two blocks ahead, and
/// their pages one, so that no copy waits for them.
class RowFinder {
 public:
  __device__ RowFinder(const Params& p, const TileWork& work)
      : keys_(p.keys), divide_(p.divide_by_page), blocks_(work.blocks) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpGroup;
    const int lane = thread % kWarp;
    list_ = p.list + work.index * p.capacity + thread / kWarp * kRowsOfAWarp + lane % kRowsOfAWarp +
            lane / kRowsOfAWarp % kRowsAThread * kRowsAtOnce;
    if (keys_.block_table == nullptr) {
      first_row_ = __ldg(keys_.first_row + work.request);
    } else {
      table_ = keys_.block_table + work.request * keys_.table_row_stride;
    }
    read_position();
    look_up();
    read_position();
  }

  /// The rows of the next block. A key has none where its position is -1, its page lies outside the cache or the block
  /// table, or the converted rows do not reach to it.
  __device__ SourceRows next() {
    const std::int64_t offset = find();
    look_up();
    read_position();
    SourceRows rows;
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      const auto lane = static_cast<int>(threadIdx.x) % kWarp / kChunks + i * kRowsOfAWarp;
      const std::int64_t found = __shfl_sync(~0U, offset, lane);
      rows.exists[i] = found >= 0;
      rows.data[i] = keys_.data + max(found, std::int64_t{0});
    }
    return rows;
  }

 private:
  static constexpr int kRowsOfAWarp = kWarp / kChunks;  // at once

  __device__ void read_position() {
    position_ = blocks_ > 0 ? __ldg(list_) : -1;
    list_ += kKeys;
    --blocks_;
  }

  /// Asks for the page of the position that was read last.
  __device__ void look_up() {
    if (table_ == nullptr) {
      in_page_ = position_;
      return;
    }
    const int page = divide_.divmod(in_page_, max(position_, 0));
    page_ = position_ >= 0 && page < keys_.table_width ? __ldg(table_ + page * keys_.table_stride) : -1;
  }

  /// Bytes from the first row of all to the one looked up, or -1.
  __device__ std::int64_t find() const {
    if (table_ == nullptr) {
      const std::int64_t row = first_row_ + in_page_;
      return in_page_ >= 0 && row < keys_.num_rows ? row * keys_.row_stride : -1;
    }
    return page_ >= 0 && page_ < keys_.num_pages ? page_ * keys_.page_stride + in_page_ * keys_.row_stride : -1;
  }

  const KeyRows& keys_;
  const cutlass::FastDivmod& divide_;
  const std::int32_t* list_;
  const std::int32_t* table_ = nullptr;  ///< of the request; null: its rows lie one after another
  std::int64_t first_row_ = 0;           ///< of the request, in that case
  int blocks_;                           ///< whose positions have not been read
  std::int32_t position_;
  std::int32_t page_ = -1;
  int in_page_ = 0;
};

/// A thread's place in a column block.
struct Place {
  int row;  ///< its first one; the others follow kRowsAtOnce apart, and are permuted alike
  int chunk;
  int target;  ///< of its first 16 bytes

  __device__ explicit Place(int thread)
      : row(thread / kChunks),
        chunk(thread % kChunks),
        target(row * kRowBytes + ((chunk ^ row % kChunks) * kChunkBytes)) {}
};

/// Copies column blocks [kFirst, kEnd) of bfloat16 rows.
template <int kFirst, int kEnd>
__device__ void copy_columns(std::byte (*buffer)[kColumnBlockBytes], const SourceRows& rows, const Place& place) {
#pragma unroll
  for (int c = kFirst; c < kEnd; ++c) {
    copy_column_block(buffer[c] + place.target, rows, c * kRowBytes + place.chunk * kChunkBytes);
  }
}

/// A thread's codes of quantised rows, which become bfloat16 on their way into a buffer, rounded once. There is room
/// for half a row: while a column block is converted, the next three are on their way.
template <CacheFormat kFormat>
class Codes {
 public:
  static constexpr bool kGroups = kFormat == CacheFormat::fp8_ds_mla;
  static_assert(kGroups || kFormat == CacheFormat::fp8);

  __device__ Codes(const KeyRows& keys, const Place& place) : scale_(keys.scale), place_(place) {}

  __device__ void fetch_half(const SourceRows& rows) {
    fetch<0>(rows);
    fetch<1>(rows);
    fetch<2>(rows);
    fetch<3>(rows);
  }

  /// Stores a column block, and asks for the one that is half a row further; of the next block's rows, from the right
  /// half on.
  template <int kColumnBlock>
  __device__ void step(std::byte (*buffer)[kColumnBlockBytes], const SourceRows& rows) {
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      const float scale = kGroups ? scales_[group_of(kColumnBlock)][i] : scale_;
      put(buffer[kColumnBlock], i, convert(codes_[kColumnBlock % kHalfBlocks][i], scale));
    }
    fetch<(kColumnBlock + kHalfBlocks) % kLatentBlocks>(rows);
  }

  /// The rope key where it is quantised.
  __device__ void fetch_rope(const SourceRows& rows) {
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      rope_[i] = read<uint2>(rows, i, kRank, place_.chunk);
    }
  }
  __device__ void store_rope(std::byte (*buffer)[kColumnBlockBytes]) const {
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      put(buffer[kLatentBlocks], i, convert(rope_[i], scale_));
    }
  }

 private:
  static constexpr int kBlocksAGroup = static_cast<int>(cache::kScaleGroupSize) / kColumns;
  static_assert(kHalfBlocks == 4 && kBlocksAGroup == 2, "codes of four column blocks, scales of two groups");

  /// Where a column block's scales are kept.
  static constexpr __device__ int group_of(int column_block) { return column_block / kBlocksAGroup % 2; }

  template <int kColumnBlock>
  __device__ void fetch(const SourceRows& rows) {
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      codes_[kColumnBlock % kHalfBlocks][i] = read<uint2>(rows, i, kColumnBlock * kColumns, place_.chunk);
      // With a group's last column block, when those of the group before it have been stored.
      if (kGroups && kColumnBlock % kBlocksAGroup == kBlocksAGroup - 1) {
        scales_[group_of(kColumnBlock)][i] = read<float>(rows, i, cache::kScaleOffset, kColumnBlock / kBlocksAGroup);
      }
    }
  }
  /// Element `index` of those that begin at a row's byte `offset`.
  template <class T>
  __device__ static T read(const SourceRows& rows, int i, std::int64_t offset, int index) {
    const T* from = reinterpret_cast<const T*>(rows.data[i]) + index + offset / std::int64_t{sizeof(T)};
    return rows.exists[i] ? __ldg(from) : T{};
  }
  __device__ static uint4 convert(const uint2& words, float scale) {
    cache::cuda::LaneValues<cache::cuda::E4m3> codes;
    codes.words[0] = words;
    return cache::cuda::from_float<__nv_bfloat16>(cache::cuda::to_float(codes, scale), 1.0F).words[0];
  }
  __device__ void put(std::byte* column_block, int i, const uint4& values) const {
    *reinterpret_cast<uint4*>(column_block + place_.target + i * kRowsAtOnce * kRowBytes) = values;
  }

  uint2 codes_[kHalfBlocks][kRowsAThread];
  uint2 rope_[kRowsAThread];
  float scales_[2][kRowsAThread];
  float scale_;
  Place place_;
};

template <int kQk, CacheFormat kFormat>
class Producer {
 public:
  __device__ Producer(const Params& p, SharedStorage<kQk>& smem)
      : p_(p), smem_(smem), thread_(static_cast<int>(threadIdx.x) % kWarpGroup), place_(thread_) {}

  __device__ void run() {
    Turn slot;
    auto next = static_cast<std::int32_t>(blockIdx.x);
    while (true) {
      if (thread_ == 0) {
        Barrier::wait(&smem_.empty_work[slot.index], slot.phase ^ 1U);
        smem_.work[slot.index] = describe(p_, next);
        Barrier::arrive(&smem_.full_work[slot.index]);
        next = static_cast<std::int32_t>(gridDim.x) + atomicAdd(p_.counter, 1);
      }
      __syncwarp();
      Barrier::wait(&smem_.full_work[slot.index], slot.phase);
      const TileWork work = smem_.work[slot.index];
      __syncwarp();
      if (thread_ % kWarp == 0) {
        Barrier::arrive(&smem_.empty_work[slot.index]);
      }
      slot.advance();
      if (work.index < 0) {
        return;
      }
      if (work.blocks > 0) {
        load_queries(work);
        load_keys(work);
      }
    }
  }

 private:
  __device__ void load_queries(const TileWork& work) {
    Barrier::wait(&smem_.empty_q, q_phase_ ^ 1U);
    q_phase_ ^= 1U;
    SourceRows rows;
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      const int row = place_.row + i * kRowsAtOnce;
      rows.exists[i] = row < work.rows;
      rows.data[i] = p_.query + (rows.exists[i] ? work.first_row + row : 0) * (kRank * 2);
    }
    for (int c = 0; c < kLatentBlocks; ++c) {
      copy_column_block(smem_.q[c] + place_.target, rows, c * kRowBytes + place_.chunk * kChunkBytes);
    }
    if constexpr (kQk > kRank) {
#pragma unroll
      for (int i = 0; i < kRowsAThread; ++i) {
        const int row = place_.row + i * kRowsAtOnce;
        const int query = p_.parts == 1 ? row / p_.heads : 0;
        const int head = work.first_head + row - query * p_.heads;
        const std::int64_t element =
            (std::int64_t{work.token} + query) * p_.query_rope_stride + head * p_.query_rope_head_stride;
        rows.data[i] = reinterpret_cast<const std::byte*>(p_.query_rope + (rows.exists[i] ? element : 0));
      }
      copy_column_block(smem_.q[kLatentBlocks] + place_.target, rows, place_.chunk * kChunkBytes);
    }
    cutlass::arch::cpasync_barrier_arrive_noinc(&smem_.full_q);
  }

  __device__ void load_keys(const TileWork& work) {
    RowFinder finder(p_, work);
    SourceRows rows = finder.next();
    if constexpr (kFormat == CacheFormat::bfloat16) {
      copy_keys(work.blocks, finder, rows);
    } else {
      convert_keys(work.blocks, finder, rows);
    }
  }

  __device__ void copy_keys(int blocks, RowFinder& finder, SourceRows& rows) {
    for (int block = 0; block < blocks; ++block) {
      const int b = block % 2;
      wait_until_free(b, 0);
      copy_columns<0, kHalfBlocks>(smem_.k[b], rows, place_);
      cutlass::arch::cpasync_barrier_arrive_noinc(&smem_.full_k[b][0]);
      wait_until_free(b, 1);
      copy_columns<kHalfBlocks, kQk / kColumns>(smem_.k[b], rows, place_);
      cutlass::arch::cpasync_barrier_arrive_noinc(&smem_.full_k[b][1]);
      k_phases_ ^= 1U << b;
      rows = finder.next();
    }
  }

  __device__ void convert_keys(int blocks, RowFinder& finder, SourceRows& rows) {
    constexpr bool kRopeCodes = kQk > kRank && kFormat == CacheFormat::fp8;
    Codes<kFormat> codes(p_.keys, place_);
    codes.fetch_half(rows);
    for (int block = 0; block < blocks; ++block) {
      const int b = block % 2;
      std::byte(*buffer)[kColumnBlockBytes] = smem_.k[b];
      if constexpr (kRopeCodes) {
        codes.fetch_rope(rows);
      }
      wait_until_free(b, 0);
      codes.template step<0>(buffer, rows);
      codes.template step<1>(buffer, rows);
      codes.template step<2>(buffer, rows);
      codes.template step<3>(buffer, rows);
      arrive_after_stores(smem_.full_k[b][0]);
      wait_until_free(b, 1);
      if constexpr (kRopeCodes) {
        codes.store_rope(buffer);
      } else if constexpr (kQk > kRank) {
        copy_column_block(buffer[kLatentBlocks] + place_.target, rows, cache::kRopeOffset + place_.chunk * kChunkBytes);
        cutlass::arch::cpasync_barrier_arrive_noinc(&smem_.full_k[b][1]);
      }
      rows = finder.next();
      codes.template step<4>(buffer, rows);
      codes.template step<5>(buffer, rows);
      codes.template step<6>(buffer, rows);
      codes.template step<7>(buffer, rows);
      arrive_after_stores(smem_.full_k[b][1]);
      k_phases_ ^= 1U << b;
    }
  }

  /// Waits until half `half` of buffer `b` may be filled.
  __device__ void wait_until_free(int b, int half) {
    Barrier::wait(&smem_.empty_k[b][half], (k_phases_ >> b & 1U) ^ 1U);
  }
  /// The products read what was stored through another proxy.
  __device__ static void arrive_after_stores(std::uint64_t& barrier) {
    cutlass::arch::fence_view_async_shared();
    Barrier::arrive(&barrier);
  }

  const Params& p_;
  SharedStorage<kQk>& smem_;
  const int thread_;
  const Place place_;
  std::uint32_t k_phases_ = 0;  ///< a bit a buffer
  std::uint32_t q_phase_ = 0;
};

}  // namespace headrace::attention::mqa::sm90
