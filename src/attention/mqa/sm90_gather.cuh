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
  UnionTile tile = p.tiles[work.index];
  // Lists may be a caller's who keeps them for other layers: whatever they are, rows and lists are those that exist.
  const bool sound = tile.request >= 0 && tile.request < p.requests && tile.rows >= 0 && tile.rows <= p.group &&
                     tile.token >= 0 && tile.token <= p.tokens - tile.rows && tile.blocks >= 0 &&
                     tile.blocks <= p.capacity / kKeys;
  tile.rows = sound ? tile.rows : 0;
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
    if (keys_.first_row != nullptr) {
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
    if (keys_.first_row != nullptr) {
      in_page_ = position_;
      return;
    }
    const int page = divide_.divmod(in_page_, max(position_, 0));
    page_ = position_ >= 0 && page < keys_.table_width ? __ldg(table_ + page * keys_.table_stride) : -1;
  }

  /// Bytes from the first row of all to the one looked up, or -1.
  __device__ std::int64_t find() const {
    if (keys_.first_row != nullptr) {
      const std::int64_t row = first_row_ + in_page_;
      return in_page_ >= 0 && row < keys_.num_rows ? row * keys_.row_stride : -1;
    }
    return page_ >= 0 && page_ < keys_.num_pages ? page_ * keys_.page_stride + in_page_ * keys_.row_stride : -1;
  }

  const KeyRows& keys_;
  const cutlass::FastDivmod& divide_;
  const std::int32_t* list_;
  const std::int32_t* table_ = nullptr;  ///< of the request, where its rows lie in pages
  std::int64_t first_row_ = 0;           ///< of the request, where they lie one after another
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

/// Brings keys into a buffer a part at a time: `fetch` may start what does not need the buffer, `store` needs it free
/// and arrives at the barrier once everything is there.
template <CacheFormat kFormat>
class KeyCopies;

/// bfloat16 needs no registers.
template <>
class KeyCopies<CacheFormat::bfloat16> {
 public:
  __device__ explicit KeyCopies(const KeyRows& /*keys*/, const Place& place) : place_(place) {}

  template <int kFirst, int kEnd>
  __device__ void fetch(const SourceRows& /*rows*/) {}
  /// Column blocks [kFirst, kEnd).
  template <int kFirst, int kEnd>
  __device__ void store(std::byte (*buffer)[kColumnBlockBytes], const SourceRows& rows) {
#pragma unroll
    for (int c = kFirst; c < kEnd; ++c) {
      copy_column_block(buffer[c] + place_.target, rows, c * kRowBytes + place_.chunk * kChunkBytes);
    }
  }
  template <int kEnd>
  __device__ static void arrive(std::uint64_t& barrier) {
    cutlass::arch::cpasync_barrier_arrive_noinc(&barrier);
  }

 private:
  Place place_;
};

/// Quantised rows go through registers: codes are asked for while the buffer is still read, and become bfloat16 on
/// their way into it, rounded once.
template <CacheFormat kFormat>
class KeyCopies {
 public:
  static constexpr bool kGroups = kFormat == CacheFormat::fp8_ds_mla;
  static_assert(kGroups || kFormat == CacheFormat::fp8);

  __device__ KeyCopies(const KeyRows& keys, const Place& place) : scale_(keys.scale), place_(place) {}

  template <int kFirst, int kEnd>
  __device__ void fetch(const SourceRows& rows) {
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      const bool exists = rows.exists[i];
      const auto* codes = reinterpret_cast<const uint2*>(rows.data[i]) + place_.chunk;
#pragma unroll
      for (int c = kFirst; c < kEnd; ++c) {
        if (!is_copied(c)) {
          codes_[c - kFirst][i] = exists ? __ldg(codes + c * kChunks) : uint2{};
        }
      }
      if constexpr (kGroups) {
        static_assert(kHalfBlocks / kBlocksAGroup == 2, "a half has two scales");
        const auto* scales = reinterpret_cast<const float2*>(rows.data[i] + cache::kScaleOffset);
        scales_[i] = exists ? __ldg(scales + kFirst / kHalfBlocks) : float2{};
      }
    }
  }
  template <int kFirst, int kEnd>
  __device__ void store(std::byte (*buffer)[kColumnBlockBytes], const SourceRows& rows) {
#pragma unroll
    for (int c = kFirst; c < kEnd; ++c) {
      if (is_copied(c)) {
        copy_column_block(buffer[c] + place_.target, rows, cache::kRopeOffset + place_.chunk * kChunkBytes);
        continue;
      }
#pragma unroll
      for (int i = 0; i < kRowsAThread; ++i) {
        cache::cuda::LaneValues<cache::cuda::E4m3> codes;
        codes.words[0] = codes_[c - kFirst][i];
        const bool first_group = (c - kFirst) / kBlocksAGroup == 0;
        const float scale = !kGroups ? scale_ : first_group ? scales_[i].x : scales_[i].y;
        *reinterpret_cast<uint4*>(buffer[c] + place_.target + i * kRowsAtOnce * kRowBytes) =
            cache::cuda::from_float<__nv_bfloat16>(cache::cuda::to_float(codes, scale), 1.0F).words[0];
      }
    }
  }
  /// Once for what was stored, which the products read through another proxy, and once for what is being copied.
  template <int kEnd>
  __device__ static void arrive(std::uint64_t& barrier) {
    if constexpr (is_copied(kEnd - 1)) {
      cutlass::arch::cpasync_barrier_arrive_noinc(&barrier);
    }
    cutlass::arch::fence_view_async_shared();
    Barrier::arrive(&barrier);
  }

 private:
  static constexpr int kBlocksAGroup = static_cast<int>(cache::kScaleGroupSize) / kColumns;

  /// The rope key of fp8_ds_mla is bfloat16.
  static constexpr __device__ bool is_copied(int column_block) { return kGroups && column_block >= kLatentBlocks; }

  uint2 codes_[kHalfBlocks + 1][kRowsAThread];  ///< the rope key's last, where it is quantised
  float2 scales_[kGroups ? kRowsAThread : 1];   ///< of the half's groups
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
    KeyCopies<kFormat> copies(p_.keys, place_);
    SourceRows rows = finder.next();
    copies.template fetch<0, kHalfBlocks>(rows);
    for (int block = 0; block < work.blocks; ++block) {
      const auto b = static_cast<unsigned>(block % 2);
      const std::uint32_t free_phase = (k_phases_ >> b & 1U) ^ 1U;
      Barrier::wait(&smem_.empty_k[b][0], free_phase);
      copies.template store<0, kHalfBlocks>(smem_.k[b], rows);
      copies.template arrive<kHalfBlocks>(smem_.full_k[b][0]);
      copies.template fetch<kHalfBlocks, kQk / kColumns>(rows);
      Barrier::wait(&smem_.empty_k[b][1], free_phase);
      copies.template store<kHalfBlocks, kQk / kColumns>(smem_.k[b], rows);
      copies.template arrive<kQk / kColumns>(smem_.full_k[b][1]);
      k_phases_ ^= 1U << b;
      rows = finder.next();
      copies.template fetch<0, kHalfBlocks>(rows);
    }
  }

  const Params& p_;
  SharedStorage<kQk>& smem_;
  const int thread_;
  const Place place_;
  std::uint32_t k_phases_ = 0;  ///< a bit a buffer
  std::uint32_t q_phase_ = 0;
};

}  // namespace headrace::attention::mqa::sm90
