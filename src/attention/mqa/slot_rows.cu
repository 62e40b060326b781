// SPDX-License-Identifier: Apache-2.0
//
// A block of threads copies one row, all its heads, in chunks of 16 bytes, or of one element where the tokens' rows do
// not lie at multiples of 16 bytes. Floor: every byte is read and written once.

#include <cuda_runtime.h>

#include <cstdint>

#include "attention/mqa/slot_rows.h"
#include "core/layout_text.h"
#include "device/cuda/launch.cuh"
#include "headrace/error.h"

namespace headrace::attention::mqa {
namespace {

constexpr int kThreads = 128;
constexpr std::int64_t kChunkBytes = sizeof(uint4);

/// Sizes and strides of rows are in chunks.
struct SlotCopy {
  const UnionTile* tiles;
  std::int64_t num_rows;  ///< slot rows
  std::int64_t group;
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t chunks;  ///< of a head
  std::int64_t token_stride;
  std::int64_t head_stride;
  std::int64_t chunk_bytes;  ///< kChunkBytes, or those of an element
};

template <bool kToSlots, class Chunk>
__global__ void __launch_bounds__(kThreads) slot_copy_kernel(const SlotCopy p, const Chunk* from, Chunk* to) {
  const std::int64_t slot = blockIdx.x;
  const UnionTile tile = p.tiles[slot / p.group];
  const std::int64_t row = slot % p.group;
  const std::int64_t token = tile.token + row;
  const bool exists = row < tile.rows && token >= 0 && token < p.tokens;
  const std::int64_t chunks = p.heads * p.chunks;
  for (std::int64_t i = threadIdx.x; i < chunks; i += kThreads) {
    const std::int64_t in_slots = slot * chunks + i;
    const std::int64_t in_tokens = token * p.token_stride + i / p.chunks * p.head_stride + i % p.chunks;
    if (kToSlots) {
      to[in_slots] = exists ? from[in_tokens] : Chunk{};
    } else if (exists) {
      to[in_tokens] = from[in_slots];
    }
  }
}

void expect(bool well, const char* name, const char* expected, const ConstAnyView& view) {
  if (!well) {
    throw Error(
        name, expected,
        std::to_string(view.dim(2)) + " columns at " +
            layout_text(view.data(), kChunkBytes, {view.stride(0), view.stride(1), view.stride(2)}, "elements"));
  }
}

bool in_chunks(std::int64_t elements, DType dtype) { return elements * size_of(dtype) % kChunkBytes == 0; }

bool starts_a_chunk(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % kChunkBytes == 0; }

/// @param token_rows  of the tokens, of at least as many columns as the slots
SlotCopy describe(View<const UnionTile> tiles, std::int64_t group, const ConstAnyView& token_rows,
                  const ConstAnyView& slots) {
  const DType dtype = slots.dtype();
  tiles.expect("tiles", {-1});
  slots.expect("slots", {tiles.dim(0) * group, -1, -1});
  const std::int64_t heads = slots.dim(1);
  const std::int64_t columns = slots.dim(2);
  token_rows.expect("rows", {-1, heads, -1});
  expect_dtype("rows", dtype, token_rows.dtype());
  expect(token_rows.dim(2) >= columns, "rows", "as many columns as the slots have", token_rows);
  expect(token_rows.stride(2) == 1, "rows", "contiguous columns", token_rows);
  expect(slots.stride(2) == 1 && slots.stride(1) == columns && slots.stride(0) == heads * columns &&
             in_chunks(columns, dtype),
         "slots", "contiguous rows of heads divisible by 16 bytes", slots);
  expect(starts_a_chunk(slots.data()), "slots", "an address divisible by 16", slots);
  const bool aligned = starts_a_chunk(token_rows.data()) && in_chunks(token_rows.stride(0), dtype) &&
                       in_chunks(token_rows.stride(1), dtype);
  const std::int64_t chunk = aligned ? kChunkBytes / size_of(dtype) : 1;
  return {.tiles = tiles.data(),
          .num_rows = slots.dim(0),
          .group = group,
          .tokens = token_rows.dim(0),
          .heads = heads,
          .chunks = columns / chunk,
          .token_stride = token_rows.stride(0) / chunk,
          .head_stride = token_rows.stride(1) / chunk,
          .chunk_bytes = chunk * size_of(dtype)};
}

template <bool kToSlots, class Chunk>
void launch_in(const SlotCopy& copy, const void* from, void* to, Stream stream) {
  device::cuda::launch("slot rows", slot_copy_kernel<kToSlots, Chunk>, static_cast<unsigned>(copy.num_rows), kThreads,
                       0, stream, copy, static_cast<const Chunk*>(from), static_cast<Chunk*>(to));
}

template <bool kToSlots>
void launch(const SlotCopy& copy, const void* from, void* to, Stream stream) {
  if (copy.num_rows == 0) {
    return;
  }
  if (copy.chunk_bytes == kChunkBytes) {
    launch_in<kToSlots, uint4>(copy, from, to, stream);
  } else if (copy.chunk_bytes == sizeof(std::uint32_t)) {
    launch_in<kToSlots, std::uint32_t>(copy, from, to, stream);
  } else {
    launch_in<kToSlots, std::uint16_t>(copy, from, to, stream);
  }
}

template <bool kToSlots>
void load() {
  device::cuda::load(slot_copy_kernel<kToSlots, uint4>);
  device::cuda::load(slot_copy_kernel<kToSlots, std::uint32_t>);
  device::cuda::load(slot_copy_kernel<kToSlots, std::uint16_t>);
}

}  // namespace

void copy_to_slots(View<const UnionTile> tiles, std::int64_t group, View<const bfloat16> from, View<bfloat16> slots,
                   Stream stream) {
  launch<true>(describe(tiles, group, from, AnyView(slots)), from.data(), slots.data(), stream);
}

void copy_from_slots(View<const UnionTile> tiles, std::int64_t group, ConstAnyView slots, const AnyView& to,
                     Stream stream) {
  to.expect("rows", {-1, slots.dim(1), slots.dim(2)});
  launch<false>(describe(tiles, group, to, slots), slots.data(), to.data(), stream);
}

void load_slot_rows() {
  load<true>();
  load<false>();
}

}  // namespace headrace::attention::mqa
