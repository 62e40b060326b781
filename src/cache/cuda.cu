// SPDX-License-Identifier: Apache-2.0
//
// Append and gather of the paged cache. A warp takes whole rows, 256 values a step (lane_values.cuh).
//
// append  a warp a token. The scale of an fp8_ds_mla group is a maximum over half a warp.
// gather  a warp eight rows: lanes 0 to 7 look up where they lie (run, length, page), then the warp moves four at a
// time,
//         so that each lane has four accesses of 16 bytes in flight (8 bytes where a value has one).
//         Bytes a key, R 512 and rope 64: bf16 1152 read, 1152 written; fp8_ds_mla 656 and 1152; fp8 576 and 1152.
//         Floor of 131,072 keys at 4.3 TB/s: bf16 70 us, fp8_ds_mla 55 us. Budget: 1.2 times that.
//
// Both read the exact lengths, slots and pages on the device, and no address is formed from one that is out of range.

#include <algorithm>
#include <cstddef>
#include <string>

#include "cache/cuda.h"
#include "cache/fp8_ds_mla.h"
#include "cache/lane_values.cuh"
#include "device/cuda/current.h"
#include "device/cuda/device.h"
#include "device/cuda/launch.cuh"
#include "headrace/cuda.h"
#include "headrace/error.h"

namespace headrace::cache::cuda {
namespace {

constexpr int kWarps = 8;  // of a block
constexpr int kRowsAWarp = 8;
constexpr int kRowsInFlight = 4;
constexpr unsigned kAllLanes = 0xffffffffU;

template <CacheFormat kFormat>
struct Stored;
template <>
struct Stored<CacheFormat::float32> {
  using Latent = float;
  using Rope = float;
};
template <>
struct Stored<CacheFormat::bfloat16> {
  using Latent = __nv_bfloat16;
  using Rope = __nv_bfloat16;
};
template <>
struct Stored<CacheFormat::fp8> {
  using Latent = E4m3;
  using Rope = E4m3;
};
template <>
struct Stored<CacheFormat::fp8_ds_mla> {
  using Latent = E4m3;
  using Rope = __nv_bfloat16;
};

template <CacheFormat kFormat>
constexpr bool kHasGroups = kFormat == CacheFormat::fp8_ds_mla;

/// Bytes from a row's start to its rope key.
template <CacheFormat kFormat>
__host__ __device__ constexpr std::int64_t rope_offset(std::int64_t latent_dim) {
  return kHasGroups<kFormat> ? kRopeOffset
                             : latent_dim * static_cast<std::int64_t>(sizeof(typename Stored<kFormat>::Latent));
}

/// A cache view as kernels take it.
template <class Byte>
struct Pages {
  Byte* data;
  std::int64_t num_pages;
  std::int64_t page_stride;
  std::int64_t row_stride;
  std::uint32_t page_size;
  float scale;

  explicit Pages(const BasicCacheView<Byte>& cache)
      : data(cache.data),
        num_pages(cache.num_pages),
        page_stride(cache.page_stride),
        row_stride(cache.row_stride),
        page_size(static_cast<std::uint32_t>(cache.page_size)),
        scale(cache.scale) {}
};

struct AppendParams {
  Pages<std::byte> cache;
  const void* latent;
  const void* rope_key;
  const std::int64_t* slots;
  std::int64_t latent_stride;
  std::int64_t rope_stride;
  std::int64_t slot_stride;
  std::int64_t tokens;
  int latent_dim;
  int rope_dim;
  bool zero_rope;  // NoPE in rows that have rope bytes
};

/// The scale of this half warp's group of 128 values.
__device__ float group_scale(const LaneValues<float>& values) {
  float largest = 0.0F;
#pragma unroll
  for (int j = 0; j < kLaneValues; ++j) {
    largest = fmaxf(largest, fabsf(values[j]));
  }
#pragma unroll
  for (int other = kHalfWarp / 2; other > 0; other /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, other));
  }
  return fmaxf(largest, kSmallestAmax) / kLargestE4m3;
}

template <CacheFormat kFormat, class Input, bool kVector>
__global__ void __launch_bounds__(kWarps* kWarp) append_kernel(const AppendParams p) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (token >= p.tokens) {
    return;
  }
  const std::int64_t slot = p.slots[token * p.slot_stride];
  if (slot < 0 || slot >= p.cache.num_pages * p.cache.page_size) {
    return;
  }
  std::byte* row =
      p.cache.data + slot / p.cache.page_size * p.cache.page_stride + slot % p.cache.page_size * p.cache.row_stride;
  using Latent = typename Stored<kFormat>::Latent;
  using Rope = typename Stored<kFormat>::Rope;

  const auto* latent = static_cast<const Input*>(p.latent) + token * p.latent_stride;
  for (int first = 0; first < p.latent_dim; first += kStepValues) {
    const LaneValues<float> values = to_float(load_values<kVector>(latent, first, p.latent_dim), 1.0F);
    float scale = p.cache.scale;
    if constexpr (kHasGroups<kFormat>) {
      scale = group_scale(values);
      if (threadIdx.x % kHalfWarp == 0) {
        const int group = first / static_cast<int>(kScaleGroupSize) + static_cast<int>(threadIdx.x) % kWarp / kHalfWarp;
        reinterpret_cast<float*>(row + kScaleOffset)[group] = scale;
      }
    }
    store_values<kVector>(from_float<Latent>(values, scale), reinterpret_cast<Latent*>(row), first, p.latent_dim);
  }
  std::byte* rope_row = row + rope_offset<kFormat>(p.latent_dim);
  const auto* rope_key = static_cast<const Input*>(p.rope_key) + token * p.rope_stride;
  for (int first = 0; first < p.rope_dim; first += kStepValues) {
    const LaneValues<float> values = to_float(load_values<kVector>(rope_key, first, p.rope_dim), 1.0F);
    store_values<kVector>(from_float<Rope>(values, p.cache.scale), reinterpret_cast<Rope*>(rope_row), first,
                          p.rope_dim);
  }
  if (p.zero_rope) {
    static_assert(kRowBytes - kRopeOffset == kWarp * 4);
    reinterpret_cast<std::uint32_t*>(rope_row)[threadIdx.x % kWarp] = 0;
  }
}

struct GatherParams {
  Pages<const std::byte> cache;
  const std::int32_t* seq_len;
  const std::int32_t* block_table;
  std::int64_t seq_len_stride;
  std::int64_t table_row_stride;
  std::int64_t table_stride;
  std::int64_t table_width;
  const KeyRun* runs;
  std::int64_t num_runs;
  std::int64_t rows;
  __nv_bfloat16* latent;
  __nv_bfloat16* rope_key;
  std::int64_t latent_stride;
  std::int64_t rope_stride;
  int latent_dim;
  int rope_dim;
  std::int32_t* counter;
};

/// Where a row of the output comes from.
struct Source {
  const std::byte* row = nullptr;  ///< null: zeros
  bool wanted = false;             ///< whether the row is some run's
};

/// The cache row of a request's position, or null where the request has none.
__device__ const std::byte* key_row(const GatherParams& p, std::int64_t request, std::int64_t position) {
  if (position < 0 || position >= p.seq_len[request * p.seq_len_stride]) {
    return nullptr;
  }
  const std::uint32_t block = static_cast<std::uint32_t>(position) / p.cache.page_size;
  const std::uint32_t in_page = static_cast<std::uint32_t>(position) % p.cache.page_size;
  if (block >= p.table_width) {
    return nullptr;
  }
  const std::int64_t page = p.block_table[request * p.table_row_stride + block * p.table_stride];
  if (page < 0 || page >= p.cache.num_pages) {
    return nullptr;
  }
  return p.cache.data + page * p.cache.page_stride + in_page * p.cache.row_stride;
}

__device__ Source find_source(const GatherParams& p, std::int64_t row) {
  if (row >= p.rows) {
    return {};
  }
  // The last run that starts at or before the row.
  std::int64_t low = 0;
  std::int64_t high = p.num_runs;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (p.runs[middle].row <= row ? low : high) = middle;
  }
  const KeyRun run = p.runs[low];
  const std::int64_t offset = row - run.row;
  if (offset < 0 || offset >= run.count) {
    return {};
  }
  return {key_row(p, run.request, run.first + offset), true};
}

/// Copies one part, latent or rope key, of kRowsInFlight rows.
template <CacheFormat kFormat, bool kVector, class T>
__device__ void gather_part(const GatherParams& p, const Source (&sources)[kRowsInFlight], std::int64_t offset, int n,
                            __nv_bfloat16* out, std::int64_t out_stride) {
  constexpr bool kGroups = kHasGroups<kFormat> && std::is_same_v<T, E4m3>;
  for (int first = 0; first < n; first += kStepValues) {
    LaneValues<T> values[kRowsInFlight];
    float scales[kRowsInFlight];
#pragma unroll
    for (int r = 0; r < kRowsInFlight; ++r) {
      const std::byte* row = sources[r].row;
      values[r] =
          row == nullptr ? LaneValues<T>{} : load_values<kVector>(reinterpret_cast<const T*>(row + offset), first, n);
      scales[r] = p.cache.scale;
      if constexpr (kGroups) {
        const int group = first / static_cast<int>(kScaleGroupSize) + static_cast<int>(threadIdx.x) % kWarp / kHalfWarp;
        scales[r] = row == nullptr ? 0.0F : __ldg(reinterpret_cast<const float*>(row + kScaleOffset) + group);
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsInFlight; ++r) {
      if (!sources[r].wanted) {
        continue;
      }
      __nv_bfloat16* to = out + r * out_stride;
      if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        store_values<kVector>(values[r], to, first, n);
      } else {
        store_values<kVector>(from_float<__nv_bfloat16>(to_float(values[r], scales[r]), 1.0F), to, first, n);
      }
    }
  }
}

template <CacheFormat kFormat, bool kVector>
__global__ void __launch_bounds__(kWarps* kWarp) gather_kernel(const GatherParams p) {
  if (p.counter != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    *p.counter = 0;
  }
  const std::int64_t warp = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const std::int64_t first_row = warp * kRowsAWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Source own = lane < kRowsAWarp ? find_source(p, first_row + lane) : Source{};

#pragma unroll
  for (int begin = 0; begin < kRowsAWarp; begin += kRowsInFlight) {
    Source sources[kRowsInFlight];
#pragma unroll
    for (int r = 0; r < kRowsInFlight; ++r) {
      const auto address = reinterpret_cast<unsigned long long>(own.row);
      sources[r].row = reinterpret_cast<const std::byte*>(__shfl_sync(kAllLanes, address, begin + r));
      sources[r].wanted = __shfl_sync(kAllLanes, static_cast<int>(own.wanted), begin + r) != 0;
    }
    const std::int64_t row = first_row + begin;
    gather_part<kFormat, kVector, typename Stored<kFormat>::Latent>(p, sources, 0, p.latent_dim,
                                                                    p.latent + row * p.latent_stride, p.latent_stride);
    gather_part<kFormat, kVector, typename Stored<kFormat>::Rope>(
        p, sources, rope_offset<kFormat>(p.latent_dim), p.rope_dim, p.rope_key + row * p.rope_stride, p.rope_stride);
  }
}

[[nodiscard]] bool divides(std::int64_t alignment, std::int64_t value) { return value % alignment == 0; }

[[nodiscard]] bool divides(std::int64_t alignment, const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(alignment) == 0;
}

/// Whether rows of the cache can be read and written eight values at a time.
template <CacheFormat kFormat, class Byte>
[[nodiscard]] bool suits_vectors(const BasicCacheView<Byte>& cache, const Geometry& g) {
  constexpr int kAlignment =
      std::max(kVectorAlignment<typename Stored<kFormat>::Latent>, kVectorAlignment<typename Stored<kFormat>::Rope>);
  return divides(kLaneValues, g.kv_lora_rank) && divides(kLaneValues, g.qk_rope_head_dim) &&
         divides(kAlignment, cache.data) && divides(kAlignment, cache.row_stride) &&
         (cache.num_pages == 1 || divides(kAlignment, cache.page_stride)) &&
         divides(kAlignment, rope_offset<kFormat>(g.kv_lora_rank));
}

/// The same for rows of a matrix of T. A matrix that is not there suits.
template <class T>
[[nodiscard]] bool suits_vectors(const void* data, std::int64_t row_stride) {
  return divides(kVectorAlignment<T>, data) &&
         divides(kVectorAlignment<T>, row_stride * static_cast<std::int64_t>(sizeof(T)));
}

[[nodiscard]] unsigned blocks_of(std::int64_t warps) { return static_cast<unsigned>((warps + kWarps - 1) / kWarps); }

void expect_contiguous_rows(const char* name, std::int64_t columns, std::int64_t stride) {
  if (columns > 1 && stride != 1) {
    throw Error(name, "contiguous rows", "elements " + std::to_string(stride) + " apart");
  }
}

/// Calls function.template operator()<kFormat>().
template <class Function>
void with_format(CacheFormat format, Function&& function) {
  switch (format) {
    case CacheFormat::float32:
      return function.template operator()<CacheFormat::float32>();
    case CacheFormat::bfloat16:
      return function.template operator()<CacheFormat::bfloat16>();
    case CacheFormat::fp8:
      return function.template operator()<CacheFormat::fp8>();
    case CacheFormat::fp8_ds_mla:
      return function.template operator()<CacheFormat::fp8_ds_mla>();
  }
}

template <CacheFormat kFormat, class T>
void launch_append(const AppendParams& params, const MutableCacheView& cache, const Geometry& geometry, Stream stream) {
  const bool vector = suits_vectors<kFormat>(cache, geometry) &&
                      suits_vectors<T>(params.latent, params.latent_stride) &&
                      suits_vectors<T>(params.rope_key, params.rope_stride);
  const auto kernel = vector ? append_kernel<kFormat, T, true> : append_kernel<kFormat, T, false>;
  device::cuda::launch("cache append", kernel, blocks_of(params.tokens), kWarps * kWarp, 0, stream, params);
}

}  // namespace

void gather(const Geometry& geometry, CacheFormat format, const CacheView& cache, const Requests& requests,
            View<const KeyRun> runs, View<bfloat16> latent, View<bfloat16> rope_key, Stream stream,
            std::int32_t* counter) {
  geometry.validate();
  validate_cache(cache, format, geometry);
  requests.seq_len.expect("seq_len", {-1});
  requests.block_table.expect("block_table", {requests.seq_len.dim(0), -1});
  runs.expect("runs", {-1});
  latent.expect("latent", {-1, geometry.kv_lora_rank});
  expect_contiguous_rows("latent", geometry.kv_lora_rank, latent.stride(1));
  const bool has_rope = geometry.qk_rope_head_dim != 0;
  if (has_rope) {
    rope_key.expect("rope_key", {latent.dim(0), geometry.qk_rope_head_dim});
    expect_contiguous_rows("rope_key", geometry.qk_rope_head_dim, rope_key.stride(1));
  }
  if (runs.stride(0) != 1) {
    throw Error("runs", "contiguous", "entries " + std::to_string(runs.stride(0)) + " apart");
  }
  if (latent.dim(0) == 0 || runs.dim(0) == 0) {
    return;
  }
  const GatherParams params{
      .cache = Pages<const std::byte>(cache),
      .seq_len = requests.seq_len.data(),
      .block_table = requests.block_table.data(),
      .seq_len_stride = requests.seq_len.stride(0),
      .table_row_stride = requests.block_table.stride(0),
      .table_stride = requests.block_table.stride(1),
      .table_width = requests.block_table.dim(1),
      .runs = runs.data(),
      .num_runs = runs.dim(0),
      .rows = latent.dim(0),
      .latent = reinterpret_cast<__nv_bfloat16*>(latent.data()),
      .rope_key = has_rope ? reinterpret_cast<__nv_bfloat16*>(rope_key.data()) : nullptr,
      .latent_stride = latent.stride(0),
      .rope_stride = has_rope ? rope_key.stride(0) : 0,
      .latent_dim = static_cast<int>(geometry.kv_lora_rank),
      .rope_dim = static_cast<int>(geometry.qk_rope_head_dim),
      .counter = counter,
  };
  with_format(format, [&]<CacheFormat kFormat>() {
    const bool vector = suits_vectors<kFormat>(cache, geometry) &&
                        suits_vectors<__nv_bfloat16>(params.latent, params.latent_stride) &&
                        suits_vectors<__nv_bfloat16>(params.rope_key, params.rope_stride);
    const auto kernel = vector ? gather_kernel<kFormat, true> : gather_kernel<kFormat, false>;
    const std::int64_t warps = (params.rows + kRowsAWarp - 1) / kRowsAWarp;
    device::cuda::launch("cache gather", kernel, blocks_of(warps), kWarps * kWarp, 0, stream, params);
  });
}

void load() {
  for (const CacheFormat format :
       {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8, CacheFormat::fp8_ds_mla}) {
    with_format(format, [&]<CacheFormat kFormat>() {  // a capture, lest it is a function pointer too
      device::cuda::load(append_kernel<kFormat, float, true>);
      device::cuda::load(append_kernel<kFormat, float, false>);
      device::cuda::load(append_kernel<kFormat, __nv_bfloat16, true>);
      device::cuda::load(append_kernel<kFormat, __nv_bfloat16, false>);
      device::cuda::load(gather_kernel<kFormat, true>);
      device::cuda::load(gather_kernel<kFormat, false>);
    });
  }
}

}  // namespace headrace::cache::cuda

namespace headrace {

void append(const Geometry& geometry, CacheFormat format, const MutableCacheView& cache, ConstAnyView latent,
            ConstAnyView rope_key, View<const std::int64_t> slot_mapping, const CudaDevice& device, Stream stream) {
  using namespace cache::cuda;
  geometry.validate();
  validate_cache(cache, format, geometry);
  latent.expect("latent", {-1, geometry.kv_lora_rank});
  expect_contiguous_rows("latent", geometry.kv_lora_rank, latent.stride(1));
  const std::int64_t tokens = latent.dim(0);
  const bool has_rope = geometry.qk_rope_head_dim != 0;
  if (has_rope) {
    rope_key.expect("rope_key", {tokens, geometry.qk_rope_head_dim});
    expect_contiguous_rows("rope_key", geometry.qk_rope_head_dim, rope_key.stride(1));
    expect_dtype("rope_key", latent.dtype(), rope_key.dtype());
  }
  slot_mapping.expect("slot_mapping", {tokens});
  if (tokens > INT32_MAX) {
    throw Error("latent", "fewer than 2^31 tokens", std::to_string(tokens));
  }
  if (latent.dtype() != DType::float32 && latent.dtype() != DType::bfloat16) {
    throw Error("latent", "float32 or bfloat16", std::string(name_of(latent.dtype())));
  }
  if (tokens == 0) {
    return;
  }
  const device::cuda::CurrentDevice current(device::cuda::served_ordinal(device));
  const AppendParams params{
      .cache = Pages<std::byte>(cache),
      .latent = latent.data(),
      .rope_key = has_rope ? rope_key.data() : nullptr,
      .slots = slot_mapping.data(),
      .latent_stride = latent.stride(0),
      .rope_stride = has_rope ? rope_key.stride(0) : 0,
      .slot_stride = slot_mapping.stride(0),
      .tokens = tokens,
      .latent_dim = static_cast<int>(geometry.kv_lora_rank),
      .rope_dim = static_cast<int>(geometry.qk_rope_head_dim),
      .zero_rope = format == CacheFormat::fp8_ds_mla && !has_rope && cache.row_bytes >= cache::kRowBytes,
  };
  with_format(format, [&]<CacheFormat kFormat>() {
    if (latent.dtype() == DType::float32) {
      launch_append<kFormat, float>(params, cache, geometry, stream);
    } else {
      launch_append<kFormat, __nv_bfloat16>(params, cache, geometry, stream);
    }
  });
}

}  // namespace headrace
