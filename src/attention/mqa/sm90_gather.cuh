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

/// The thread's number in the producer.
__device__ inline int producer_thread() { return static_cast<int>(threadIdx.x) - kConsumers * kWarpGroup; }

/// Eight threads of the producer copy a row of a column block; sixteen rows at once, four times.
inline constexpr int kRowsAtOnce = kWarpGroup / kChunks;
inline constexpr int kRowsAThread = kRows / kRowsAtOnce;

/// Rows of memory that belong to a thread's rows of a tile. Where there is none, zeros are wanted, and `data` is the
/// address of a row of zeros.
struct SourceRows {
  const std::byte* data[kRowsAThread];
  bool exists[kRowsAThread];
};

__device__ const uint4 kZeroRow[(kRank + kRope) * 2 / kChunkBytes] = {};

__device__ inline const std::byte* zero_row() { return reinterpret_cast<const std::byte*>(kZeroRow); }

/// Copies the thread's 16 bytes of each of its rows of a column block. Zeros are not read, but filled in: reading would
/// ask one piece of L2 for all of them.
__device__ inline void copy_column_block(std::byte* to, const SourceRows& rows, int offset) {
#pragma unroll
  for (int i = 0; i < kRowsAThread; ++i) {
    cutlass::arch::cp_async_zfill<kChunkBytes, cutlass::arch::CacheOperation::Global>(
        to + i * kRowsAtOnce * kRowBytes, rows.data[i] + offset, rows.exists[i]);
  }
}

/// Stands for a kernel that reads keys of any format, and queries, at any addresses, value by value.
inline constexpr CacheFormat kAnyRows = CacheFormat::float32;

/// Finds the rows of a tile's keys, block after block. A lane finds one of the sixteen rows that its warp copies (the
/// upper half of a warp does what the lower does) and the warp exchanges them.
/// @tparam kFormat  rows that lie one after another, as converted ones do, are bfloat16
template <CacheFormat kFormat>
class RowFinder {
 public:
  __device__ RowFinder(const Params& p, const TileWork& work)
      : keys_(p.keys), divide_(p.divide_by_page), blocks_(work.blocks) {
    const int thread = producer_thread();
    const int lane = thread % kWarp;
    list_ = p.list + work.index * p.capacity + thread / kWarp * kRowsOfAWarp + lane % kRowsOfAWarp +
            lane / kRowsOfAWarp % kRowsAThread * kRowsAtOnce;
    if (in_pages()) {
      table_ = keys_.block_table + work.request * keys_.table_row_stride;
    } else {
      first_row_ = __ldg(keys_.first_row + work.request);
    }
    read_position();
    look_ahead();
  }

  /// The rows of the block that was looked up last. A key has none where its position is -1, its page lies outside the
  /// cache or the block table, or the converted rows do not reach to it.
  __device__ SourceRows rows() const {
    const std::int64_t offset = find();
    SourceRows rows;
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      const auto lane = static_cast<int>(threadIdx.x) % kWarp / kChunks + i * kRowsOfAWarp;
      const std::int64_t found = __shfl_sync(~0U, offset, lane);
      rows.exists[i] = found >= 0;
      rows.data[i] = rows.exists[i] ? keys_.data + found : zero_row();
    }
    return rows;
  }

  /// Asks for the pages of the next block, and for the positions of the one after it, so that nothing waits for them.
  __device__ void look_ahead() {
    look_up();
    read_position();
  }

 private:
  static constexpr int kRowsOfAWarp = kWarp / kChunks;  // at once

  __device__ bool in_pages() const {
    return (kFormat != CacheFormat::bfloat16 && kFormat != kAnyRows) || keys_.first_row == nullptr;
  }

  __device__ void read_position() {
    position_ = blocks_ > 0 ? __ldg(list_) : -1;
    list_ += kKeys;
    --blocks_;
  }

  __device__ void look_up() {
    if (!in_pages()) {
      in_page_ = position_;
      return;
    }
    const int page = divide_.divmod(in_page_, max(position_, 0));
    page_ = position_ >= 0 && page < keys_.table_width ? __ldg(table_ + page * keys_.table_stride) : -1;
  }

  /// Bytes from the first row of all to the one looked up, or -1.
  __device__ std::int64_t find() const {
    if (!in_pages()) {
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

/// Eight values from number `first` on of what lies at an address; zeros where nothing does.
template <class T>
__device__ cache::cuda::LaneValues<T> read_values(const std::byte* from, bool exists, int first) {
  cache::cuda::LaneValues<T> values;
  if (exists) {
#pragma unroll
    for (int j = 0; j < cache::cuda::kLaneValues; ++j) {
      values[j] = __ldg(reinterpret_cast<const T*>(from) + first + j);
    }
  }
  return values;
}

/// Rounds eight values once and puts them into the thread's row i of a column block.
template <class T>
__device__ void store_values(std::byte* to, int i, const cache::cuda::LaneValues<T>& values, float scale) {
  *reinterpret_cast<uint4*>(to + i * kRowsAtOnce * kRowBytes) =
      cache::cuda::from_float<__nv_bfloat16>(cache::cuda::to_float(values, scale), 1.0F).words[0];
}

/// The thread's eight values of each of its rows of a column block, read one by one.
/// @param offset  bytes from a row's start to its value 0
template <class T>
__device__ void copy_values(std::byte* to, const SourceRows& rows, int first, int offset, float scale) {
  cache::cuda::LaneValues<T> values[kRowsAThread];
#pragma unroll
  for (int i = 0; i < kRowsAThread; ++i) {
    values[i] = read_values<T>(rows.data[i] + offset, rows.exists[i], first);
  }
#pragma unroll
  for (int i = 0; i < kRowsAThread; ++i) {
    store_values(to, i, values[i], scale);
  }
}

/// Brings a tile's keys into the buffers, block after block: of each first the columns of the left half, then all
/// others. Each time it arrives at a barrier, and what comes next has been asked for already.
template <int kQk, CacheFormat kFormat>
class KeyCopies;

/// bfloat16 needs no registers.
template <int kQk>
class KeyCopies<kQk, CacheFormat::bfloat16> {
 public:
  __device__ KeyCopies(const Params& p, const TileWork& work, const Place& place)
      : finder_(p, work), place_(place), rows_(finder_.rows()) {}

  __device__ void bring_left(std::byte (*buffer)[kColumnBlockBytes], std::uint64_t& full) {
    copy<0, kHalfBlocks>(buffer, full);
    finder_.look_ahead();
  }
  __device__ void bring_others(std::byte (*buffer)[kColumnBlockBytes], std::uint64_t& full) {
    copy<kHalfBlocks, kQk / kColumns>(buffer, full);
    rows_ = finder_.rows();
  }

 private:
  /// Column blocks [kFirst, kEnd).
  template <int kFirst, int kEnd>
  __device__ void copy(std::byte (*buffer)[kColumnBlockBytes], std::uint64_t& full) {
#pragma unroll
    for (int c = kFirst; c < kEnd; ++c) {
      copy_column_block(buffer[c] + place_.target, rows_, c * kRowBytes + place_.chunk * kChunkBytes);
    }
    cutlass::arch::cpasync_barrier_arrive_noinc(&full);
  }

  RowFinder<CacheFormat::bfloat16> finder_;
  Place place_;
  SourceRows rows_;
};

/// Quantised rows go through registers, and become bfloat16 on their way into the buffer, rounded once. Registers are
/// what they have least of: of rows that do not exist zeros are read, since predicates would cost more, and a column
/// block's codes take the place of those half a block of keys before them.
/// Consumers put the fence between these stores and their products, as they must for copies.
template <int kQk, CacheFormat kFormat>
class KeyCopies {
 public:
  static constexpr bool kGroups = kFormat == CacheFormat::fp8_ds_mla;
  static_assert(kGroups || kFormat == CacheFormat::fp8);

  __device__ KeyCopies(const Params& p, const TileWork& work, const Place& place)
      : finder_(p, work), scale_(p.keys.scale), place_(place) {
    find_rows();
#pragma unroll
    for (int c = 0; c < kHalfBlocks; ++c) {
      ask(c, c);
    }
  }

  __device__ void bring_left(std::byte (*buffer)[kColumnBlockBytes], std::uint64_t& full) {
    finder_.look_ahead();
#pragma unroll
    for (int c = 0; c < kHalfBlocks; ++c) {
      convert(c, buffer[c]);
      ask(c, kHalfBlocks + c);
    }
    if constexpr (kHasRope && !kGroups) {
      ask(kHalfBlocks, kLatentBlocks);
    }
    Barrier::arrive(&full);
  }

  /// Where the rope key is bfloat16, it arrives once more.
  __device__ void bring_others(std::byte (*buffer)[kColumnBlockBytes], std::uint64_t& full) {
    if constexpr (kHasRope && kGroups) {
      copy_rope(buffer[kLatentBlocks]);
      cutlass::arch::cpasync_barrier_arrive_noinc(&full);
    }
    find_rows();
#pragma unroll
    for (int c = 0; c < kHalfBlocks; ++c) {
      convert(c, buffer[kHalfBlocks + c]);
      ask(c, c);
    }
    if constexpr (kHasRope && !kGroups) {
      convert(kHalfBlocks, buffer[kLatentBlocks]);
    }
    Barrier::arrive(&full);
  }

 private:
  static constexpr bool kHasRope = kQk > kRank;
  static constexpr int kSlots = kHasRope && !kGroups ? kHalfBlocks + 1 : kHalfBlocks;
  static constexpr int kCodesBytes = kChunkBytes / 2;  // of eight values
  static constexpr int kBlocksAGroup = static_cast<int>(cache::kScaleGroupSize) / kColumns;
  static_assert(kHalfBlocks / kBlocksAGroup == 2, "a half has two scales");

  __device__ void find_rows() {
    const SourceRows rows = finder_.rows();
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      codes_at_[i] = rows.data[i] + place_.chunk * kCodesBytes;
    }
  }

  /// Byte `offset` of the thread's row i.
  __device__ const std::byte* row_at(int i, std::int64_t offset) const {
    return codes_at_[i] + (static_cast<int>(offset) - place_.chunk * kCodesBytes);
  }

  /// Asks for a column block's codes; with the last ones of a half for its scales.
  __device__ void ask(int slot, int column_block) {
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      codes_[slot][i] = __ldg(reinterpret_cast<const uint2*>(codes_at_[i]) + column_block * kChunks);
      if (kGroups && slot == kHalfBlocks - 1) {
        const auto* scales = reinterpret_cast<const float2*>(row_at(i, cache::kScaleOffset));
        scales_[i] = __ldg(scales + column_block / kHalfBlocks);
      }
    }
  }

  __device__ void convert(int slot, std::byte* column_block) const {
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      cache::cuda::LaneValues<cache::cuda::E4m3> codes;
      codes.words[0] = codes_[slot][i];
      const float scale = !kGroups ? scale_ : slot < kBlocksAGroup ? scales_[i].x : scales_[i].y;
      *reinterpret_cast<uint4*>(column_block + place_.target + i * kRowsAtOnce * kRowBytes) =
          cache::cuda::from_float<__nv_bfloat16>(cache::cuda::to_float(codes, scale), 1.0F).words[0];
    }
  }

  __device__ void copy_rope(std::byte* column_block) const {
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      cutlass::arch::cp_async<kChunkBytes, cutlass::arch::CacheOperation::Global>(
          column_block + place_.target + i * kRowsAtOnce * kRowBytes,
          row_at(i, cache::kRopeOffset + place_.chunk * kChunkBytes));
    }
  }

  RowFinder<kFormat> finder_;
  uint2 codes_[kSlots][kRowsAThread];  ///< the rope key's last, where it is quantised
  float2 scales_[kGroups ? kRowsAThread : 1];
  float scale_;
  Place place_;
  const std::byte* codes_at_[kRowsAThread];  ///< of the thread's columns of column block 0
};

/// Where keys are not laid out for copies of 16 bytes: what they hold is read value by value, rounded once and stored.
/// That is slow, but any layout is served. Consumers put the fence, as above.
template <int kQk>
class KeyCopies<kQk, kAnyRows> {
 public:
  __device__ KeyCopies(const Params& p, const TileWork& work, const Place& place)
      : finder_(p, work), format_(p.keys.format), scale_(p.keys.scale), place_(place), rows_(finder_.rows()) {}

  __device__ void bring_left(std::byte (*buffer)[kColumnBlockBytes], std::uint64_t& full) {
    bring(buffer, 0, kHalfBlocks);
    finder_.look_ahead();
    Barrier::arrive(&full);
  }
  __device__ void bring_others(std::byte (*buffer)[kColumnBlockBytes], std::uint64_t& full) {
    bring(buffer, kHalfBlocks, kLatentBlocks);
    if constexpr (kQk > kRank) {
      bring_rope(buffer[kLatentBlocks]);
    }
    rows_ = finder_.rows();
    Barrier::arrive(&full);
  }

 private:
  static constexpr int kBlocksAGroup = static_cast<int>(cache::kScaleGroupSize) / kColumns;

  /// Column blocks [first, end) of the latents.
  __device__ void bring(std::byte (*buffer)[kColumnBlockBytes], int first, int end) const {
#pragma unroll 1
    for (int c = first; c < end; ++c) {
      switch (format_) {
        case CacheFormat::float32:
          copy_values<float>(buffer[c] + place_.target, rows_, value_of(c), 0, 1.0F);
          break;
        case CacheFormat::bfloat16:
          copy_values<__nv_bfloat16>(buffer[c] + place_.target, rows_, value_of(c), 0, 1.0F);
          break;
        case CacheFormat::fp8:
          copy_values<cache::cuda::E4m3>(buffer[c] + place_.target, rows_, value_of(c), 0, scale_);
          break;
        case CacheFormat::fp8_ds_mla:
          copy_groups(buffer[c] + place_.target, c);
          break;
      }
    }
  }

  __device__ void bring_rope(std::byte* column_block) const {
    switch (format_) {
      case CacheFormat::float32:
        return copy_values<float>(column_block + place_.target, rows_, value_of(kLatentBlocks), 0, 1.0F);
      case CacheFormat::bfloat16:
        return copy_values<__nv_bfloat16>(column_block + place_.target, rows_, value_of(kLatentBlocks), 0, 1.0F);
      case CacheFormat::fp8:
        return copy_values<cache::cuda::E4m3>(column_block + place_.target, rows_, value_of(kLatentBlocks), 0, scale_);
      case CacheFormat::fp8_ds_mla:
        return copy_values<__nv_bfloat16>(column_block + place_.target, rows_, value_of(0),
                                          static_cast<int>(cache::kRopeOffset), 1.0F);
    }
  }

  /// e4m3 whose scales lie behind them.
  __device__ void copy_groups(std::byte* to, int column_block) const {
#pragma unroll
    for (int i = 0; i < kRowsAThread; ++i) {
      const float scale = rows_.exists[i] ? __ldg(reinterpret_cast<const float*>(rows_.data[i] + cache::kScaleOffset) +
                                                  column_block / kBlocksAGroup)
                                          : 0.0F;
      store_values(to, i, read_values<cache::cuda::E4m3>(rows_.data[i], rows_.exists[i], value_of(column_block)),
                   scale);
    }
  }

  /// The thread's first value in a column block.
  __device__ int value_of(int column_block) const {
    return column_block * kColumns + place_.chunk * cache::cuda::kLaneValues;
  }

  RowFinder<kAnyRows> finder_;
  CacheFormat format_;
  float scale_;
  Place place_;
  SourceRows rows_;
};

template <int kQk, CacheFormat kFormat>
class Producer {
 public:
  __device__ Producer(const Params& p, SharedStorage<kQk>& smem)
      : p_(p), smem_(smem), thread_(producer_thread()), place_(thread_) {}

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
      rows.data[i] = rows.exists[i] ? p_.query + (work.first_row + row) * (kRank * 2) : zero_row();
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
        rows.data[i] = rows.exists[i] ? reinterpret_cast<const std::byte*>(p_.query_rope + element) : zero_row();
      }
      if constexpr (kFormat == kAnyRows) {
        copy_values<__nv_bfloat16>(smem_.q[kLatentBlocks] + place_.target, rows,
                                   place_.chunk * cache::cuda::kLaneValues, 0, 1.0F);
        Barrier::arrive(&smem_.full_q);
      } else {
        copy_column_block(smem_.q[kLatentBlocks] + place_.target, rows, place_.chunk * kChunkBytes);
      }
    }
    cutlass::arch::cpasync_barrier_arrive_noinc(&smem_.full_q);
  }

  __device__ void load_keys(const TileWork& work) {
    KeyCopies<kQk, kFormat> copies(p_, work, place_);
    for (int block = 0; block < work.blocks; ++block) {
      const auto b = static_cast<unsigned>(block % 2);
      const std::uint32_t free_phase = (k_phases_ >> b & 1U) ^ 1U;
      Barrier::wait(&smem_.empty_k[b][0], free_phase);
      copies.bring_left(smem_.k[b], smem_.full_k[b][0]);
      Barrier::wait(&smem_.empty_k[b][1], free_phase);
      copies.bring_others(smem_.k[b], smem_.full_k[b][1]);
      k_phases_ ^= 1U << b;
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
