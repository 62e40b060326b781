// SPDX-License-Identifier: Apache-2.0
// Append and gather on the GPU, bit for bit against the CPU's.
#include "headrace/cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "cache/cuda.h"
#include "cache/row_codec.h"
#include "captured_graph.h"
#include "device/cuda/memory.h"
#include "gpu.h"
#include "on_device.h"
#include "support/cache_rows.h"
#include "support/errors.h"
#include "support/random.h"

namespace headrace {
namespace {

using cache::cuda::KeyRun;
using device::cuda::DeviceArray;
using device::cuda::DeviceBuffer;

constexpr CacheFormat kFormats[] = {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8,
                                    CacheFormat::fp8_ds_mla};
constexpr std::int64_t kPageSizes[] = {1, 3, 64};
constexpr std::byte kPoison{0xa5};
constexpr std::byte kNan{0xff};
constexpr int kCases = 60;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Dims that suit vectors of eight values, or any.
Geometry random_geometry(test::Random& random, CacheFormat format, bool aligned) {
  if (format == CacheFormat::fp8_ds_mla) {
    return {1, 512, 16, random.chance(0.5) ? 64 : 0, 16};
  }
  if (aligned) {
    return {1, 8 * (1 + random.below(90)), 16, 8 * random.below(12), 16};
  }
  return {1, 1 + random.below(600), 16, 2 * random.below(40), 16};
}

/// The memory of a cache on the host and its shape. Gaps between rows and pages are there in every second case.
struct HostCache {
  CacheFormat format = CacheFormat::float32;
  std::int64_t row_bytes = 0;
  std::vector<std::byte> memory;
  MutableCacheView view;
};

/// @param row_bytes  that belong to a row; the least that the format needs, or more
HostCache random_cache(test::Random& random, CacheFormat format, std::int64_t row_bytes, std::int64_t page_size,
                       std::int64_t pages, bool aligned, std::byte fill) {
  const std::int64_t unit = aligned ? 16 : test::row_alignment(format);
  HostCache result;
  result.format = format;
  result.row_bytes = row_bytes;
  const auto padded = [&](std::int64_t bytes) { return (bytes + unit - 1) / unit * unit + unit * random.below(4); };
  const std::int64_t row_stride = padded(row_bytes);
  const std::int64_t page_stride = padded(page_size * row_stride);
  result.memory.assign(at(pages * page_stride), fill);
  result.view = {result.memory.data(), pages, page_size, page_stride, row_stride, 0.37F, row_bytes};
  return result;
}

/// The same cache in another memory.
template <class Byte>
BasicCacheView<Byte> in_memory(const MutableCacheView& view, Byte* memory) {
  BasicCacheView<Byte> result{memory, view.num_pages, view.page_size, view.page_stride, view.row_stride};
  result.scale = view.scale;
  result.row_bytes = view.row_bytes;
  return result;
}

/// Magnitudes from far below the formats' resolution to beyond what e4m3 holds, both zeros among them.
std::vector<float> random_values(test::Random& random, std::int64_t n) {
  std::vector<float> result(at(n));
  const int range = static_cast<int>(random.below(3)) * 8;
  for (float& value : result) {
    value = random.chance(0.02) ? std::copysign(0.0F, random.normal())
                                : std::ldexp(random.normal(), static_cast<int>(random.below(range + 12)) - range);
  }
  return result;
}

template <class T>
std::vector<T> rounded(const std::vector<float>& values) {
  std::vector<T> result(values.size());
  std::ranges::transform(values, result.begin(), [](float value) { return static_cast<T>(value); });
  return result;
}

struct Trial {
  CacheFormat format = CacheFormat::float32;
  std::int64_t page_size = 1;
};

std::vector<Trial> trials() {
  std::vector<Trial> result;
  for (const CacheFormat format : kFormats) {
    for (const std::int64_t page_size : kPageSizes) {
      result.push_back({format, page_size});
    }
  }
  return result;
}

std::string trial_name(const testing::TestParamInfo<Trial>& info) {
  return std::string(name_of(info.param.format)) + "_pages_of_" + std::to_string(info.param.page_size);
}

void PrintTo(const Trial& trial, std::ostream* stream) {  // NOLINT(readability-identifier-naming): GoogleTest's name
  *stream << name_of(trial.format) << ", pages of " << trial.page_size;
}

// ---- append ---------------------------------------------------------------------------------------------------------

class GpuAppend : public testing::TestWithParam<Trial> {};

/// A slot that must be skipped.
std::int64_t bad_slot(test::Random& random, std::int64_t num_slots) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  const std::int64_t bad[] = {-1, -2, num_slots, num_slots + random.below(1000), kHuge, -kHuge - 1};
  return bad[random.below(6)];
}

template <class T>
void append_case(const Trial& trial, std::uint64_t seed) {
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  const bool aligned = random.chance(0.5);
  const Geometry geometry = random_geometry(random, trial.format, aligned);
  // NoPE in rows that have room for a rope key.
  const bool empty_rope = trial.format == CacheFormat::fp8_ds_mla && geometry.qk_rope_head_dim == 0;
  const std::int64_t row_bytes = empty_rope && random.chance(0.5) ? 656 : cache_row_bytes(trial.format, geometry);
  HostCache host =
      random_cache(random, trial.format, row_bytes, trial.page_size, 1 + random.below(7), aligned, kPoison);

  std::vector<std::int64_t> slots(at(host.view.num_slots()));
  std::iota(slots.begin(), slots.end(), 0);
  for (std::size_t i = slots.size(); i > 1; --i) {
    std::swap(slots[i - 1], slots[at(random.below(static_cast<std::int64_t>(i)))]);
  }
  slots.resize(at(random.below(host.view.num_slots() + 1)));
  std::vector<std::int64_t> host_slots = slots;
  for (std::size_t t = 0; t < slots.size(); ++t) {
    if (random.chance(0.2)) {
      slots[t] = bad_slot(random, host.view.num_slots());
      host_slots[t] = -1;
    }
  }
  const auto tokens = static_cast<std::int64_t>(slots.size());
  const std::int64_t rank = geometry.kv_lora_rank;
  const std::int64_t rope = geometry.qk_rope_head_dim;
  const std::int64_t latent_stride = rank + (aligned ? 8 : 1) * random.below(3);
  const std::int64_t rope_stride = rope + (aligned ? 8 : 1) * random.below(3);
  const std::vector<T> latent = rounded<T>(random_values(random, tokens * latent_stride));
  const std::vector<T> rope_key = rounded<T>(random_values(random, tokens * rope_stride));
  const View<const T> latent_view(latent.data(), 2, {tokens, rank, 0, 0}, {latent_stride, 1, 0, 0});
  const View<const T> rope_view(rope_key.data(), 2, {tokens, rope, 0, 0}, {rope_stride, 1, 0, 0});

  const DeviceArray<std::byte> memory(host.memory);
  const test::OnDevice<const T> device_latent(latent_view);
  const test::OnDevice<const T> device_rope(rope_view);
  const DeviceArray<std::int64_t> device_slots(slots);
  const device::cuda::OwnedStream stream;
  append(geometry, trial.format, in_memory(host.view, memory.data()), device_latent.view(), device_rope.view(),
         View<const std::int64_t>(device_slots.data(), {tokens}), *test::gpu(), stream);
  device::cuda::synchronize(stream);

  append(geometry, trial.format, host.view, latent_view, rope_view,
         View<const std::int64_t>(host_slots.data(), {tokens}), 1);
  const std::vector<std::byte> written = memory.download();
  const auto [a, b] = std::ranges::mismatch(written, host.memory);
  ASSERT_TRUE(a == written.end()) << "byte " << a - written.begin() << " is " << std::to_integer<int>(*a) << ", not "
                                  << std::to_integer<int>(*b) << "; R " << rank << ", rope " << rope << ", row stride "
                                  << host.view.row_stride << ", page stride " << host.view.page_stride;
}

TEST_P(GpuAppend, WritesTheBytesOfTheCpu) {
  const std::uint64_t seed = test::fresh_seed();
  for (int i = 0; i < kCases && !HasFatalFailure(); ++i) {
    append_case<float>(GetParam(), seed + static_cast<std::uint64_t>(i));
    append_case<bfloat16>(GetParam(), seed + static_cast<std::uint64_t>(i));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, GpuAppend, testing::ValuesIn(trials()), trial_name);

TEST(GpuAppendInput, OfTheWrongShapeIsRefused) {
  const Geometry geometry{1, 16, 16, 8, 16};
  const DeviceBuffer memory(1024);
  const MutableCacheView cache{memory.data(), 2, 2, 96, 48};
  const View<const float> latent(nullptr, {3, 16});
  const View<const float> rope_key(nullptr, {3, 8});
  const View<const std::int64_t> slots(nullptr, {3});
  const auto call = [&](ConstAnyView l, ConstAnyView r, View<const std::int64_t> s) {
    return [=] { append(geometry, CacheFormat::bfloat16, cache, l, r, s, *test::gpu(), Stream{}); };
  };
  EXPECT_TRUE(test::throws_error(call(View<const float>(nullptr, {3, 15}), rope_key, slots), "latent"));
  EXPECT_TRUE(test::throws_error(call(latent, View<const float>(nullptr, {2, 8}), slots), "rope_key"));
  EXPECT_TRUE(test::throws_error(call(latent, View<const bfloat16>(nullptr, {3, 8}), slots), "rope_key"));
  EXPECT_TRUE(test::throws_error(call(latent, rope_key, View<const std::int64_t>(nullptr, {4})), "slot_mapping"));
  EXPECT_TRUE(test::throws_error(call(latent.transposed().transposed(), rope_key.transposed(), slots), "rope_key"));
  EXPECT_TRUE(test::throws_error(call(View<const float>(nullptr, 2, {3, 16, 0, 0}, {1, 3, 0, 0}), rope_key, slots),
                                 "contiguous rows"));
}

// ---- gather ---------------------------------------------------------------------------------------------------------

class GpuGather : public testing::TestWithParam<Trial> {};

/// Requests with pages all over a cache whose every other byte is NaN; some entries of the block table are no pages.
struct GatherProblem {
  Geometry geometry;
  HostCache host;
  std::vector<std::int32_t> seq_len;
  std::vector<std::int32_t> table;
  std::int64_t table_width = 0;
  std::int64_t table_stride = 0;
  std::vector<std::int64_t> owned;  // slots that hold a key
  std::vector<KeyRun> runs;
  std::int64_t rows = 0;

  [[nodiscard]] Requests requests() const {
    const auto count = static_cast<std::int64_t>(seq_len.size());
    return {{},
            View<const std::int32_t>(seq_len.data(), {count}),
            View<const std::int32_t>(table.data(), 2, {count, table_width, 0, 0}, {table_stride, 1, 0, 0})};
  }
};

void write_keys(GatherProblem& p, test::Random& random) {
  const auto tokens = static_cast<std::int64_t>(p.owned.size());
  const std::vector<float> latent = random_values(random, tokens * p.geometry.kv_lora_rank);
  const std::vector<float> rope_key = random_values(random, tokens * p.geometry.qk_rope_head_dim);
  append(p.geometry, p.host.format, p.host.view, View<const float>(latent.data(), {tokens, p.geometry.kv_lora_rank}),
         View<const float>(rope_key.data(), {tokens, p.geometry.qk_rope_head_dim}),
         View<const std::int64_t>(p.owned.data(), {tokens}), 1);
}

void place_runs(GatherProblem& p, test::Random& random) {
  const auto requests = static_cast<std::int64_t>(p.seq_len.size());
  for (std::int64_t n = 1 + random.below(9); n > 0; --n) {
    KeyRun run;
    run.request = static_cast<std::int32_t>(random.below(requests));
    const std::int64_t seq_len = p.seq_len[at(run.request)];
    run.first = static_cast<std::int32_t>(random.below(seq_len + 5));
    run.count = static_cast<std::int32_t>(random.below(seq_len + 20));
    run.row = p.rows + random.below(3);  // rows before it are nobody's
    p.rows = run.row + run.count;
    p.runs.push_back(run);
  }
  p.rows += random.below(3);
}

GatherProblem random_gather(const Trial& trial, test::Random& random, bool aligned) {
  GatherProblem p;
  p.geometry = random_geometry(random, trial.format, aligned);
  const std::int64_t requests = 1 + random.below(5);
  std::int64_t pages = 2;
  for (std::int64_t b = 0; b < requests; ++b) {
    p.seq_len.push_back(static_cast<std::int32_t>(random.below(4 * trial.page_size + 30)));
    const std::int64_t own = (p.seq_len.back() + trial.page_size - 1) / trial.page_size;
    p.table_width = std::max(p.table_width, own);
    pages += own;
  }
  p.table_width = std::max<std::int64_t>(1, p.table_width - (random.chance(0.2) ? 1 : 0));
  p.table_stride = p.table_width + random.below(4);
  p.host = random_cache(random, trial.format, cache_row_bytes(trial.format, p.geometry), trial.page_size, pages,
                        aligned, kNan);

  std::vector<std::int32_t> free(at(pages));
  std::iota(free.begin(), free.end(), 0);
  for (std::size_t i = free.size(); i > 1; --i) {
    std::swap(free[i - 1], free[at(random.below(static_cast<std::int64_t>(i)))]);
  }
  const std::int32_t bad[] = {-1, static_cast<std::int32_t>(pages), std::numeric_limits<std::int32_t>::max(),
                              std::numeric_limits<std::int32_t>::min()};
  p.table.assign(at(requests * p.table_stride), 0);
  for (std::int64_t b = 0; b < requests; ++b) {
    for (std::int64_t i = 0; i < p.table_stride; ++i) {
      std::int32_t& entry = p.table[at(b * p.table_stride + i)];
      entry = bad[random.below(4)];
      const std::int64_t keys = std::min(trial.page_size, p.seq_len[at(b)] - i * trial.page_size);
      if (i < p.table_width && keys > 0 && random.chance(0.9)) {
        entry = free.back();
        free.pop_back();
        for (std::int64_t k = 0; k < keys; ++k) {
          p.owned.push_back(entry * trial.page_size + k);
        }
      }
    }
  }
  write_keys(p, random);
  place_runs(p, random);
  return p;
}

/// What the output must hold: latents and rope keys of [rows, columns] with strides, over a poison.
struct Expected {
  std::vector<bfloat16> latent;
  std::vector<bfloat16> rope_key;
};

Expected expected_rows(const GatherProblem& p, std::int64_t latent_stride, std::int64_t rope_stride) {
  Expected result;
  bfloat16 poison;
  poison.bits = 0xa5a5;
  result.latent.assign(at(p.rows * latent_stride), poison);
  result.rope_key.assign(at(p.rows * rope_stride), poison);
  const cache::RowCodec codec(p.host.format, p.geometry, DType::bfloat16, p.host.view.scale);
  const Requests requests = p.requests();
  for (const KeyRun& run : p.runs) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      bfloat16* latent = result.latent.data() + (run.row + i) * latent_stride;
      bfloat16* rope_key = result.rope_key.data() + (run.row + i) * rope_stride;
      std::fill_n(latent, p.geometry.kv_lora_rank, bfloat16(0.0F));
      std::fill_n(rope_key, p.geometry.qk_rope_head_dim, bfloat16(0.0F));
      const std::int64_t position = run.first + i;
      const std::int64_t block = position / p.host.view.page_size;
      if (position < p.seq_len[at(run.request)] && block < p.table_width) {
        const std::int64_t page = requests.block_table(run.request, block);
        if (page >= 0 && page < p.host.view.num_pages) {
          codec.read(p.host.view.row(page * p.host.view.page_size + position % p.host.view.page_size), latent,
                     rope_key);
        }
      }
    }
  }
  return result;
}

/// The cache on the device: all of it, NaN included; or only the bytes of keys, so that compute-sanitizer's initcheck
/// sees every other byte that is read.
DeviceArray<std::byte> on_device(const GatherProblem& p, bool keys_only) {
  if (!keys_only) {
    return DeviceArray<std::byte>(p.host.memory);
  }
  DeviceArray<std::byte> memory(static_cast<std::int64_t>(p.host.memory.size()));
  for (const std::int64_t slot : p.owned) {
    const std::int64_t offset = p.host.view.row(slot) - p.host.view.data;
    memory.bytes().upload(std::span(p.host.memory).subspan(at(offset), at(p.host.row_bytes)), offset);
  }
  return memory;
}

void expect_same(const char* what, const std::vector<bfloat16>& actual, const std::vector<bfloat16>& expected,
                 std::int64_t stride, const GatherProblem& p) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(actual[i].bits, expected[i].bits)
        << what << " row " << i / at(stride) << " of " << p.rows << ", column " << i % at(stride) << "; R "
        << p.geometry.kv_lora_rank << ", rope " << p.geometry.qk_rope_head_dim << ", row stride "
        << p.host.view.row_stride << ", page stride " << p.host.view.page_stride;
  }
}

void gather_case(const Trial& trial, std::uint64_t seed) {
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  const bool aligned = random.chance(0.5);
  const GatherProblem p = random_gather(trial, random, aligned);
  const Geometry& g = p.geometry;
  const std::int64_t unit = aligned ? 8 : 1;
  const std::int64_t latent_stride = g.kv_lora_rank + unit * random.below(3);
  const std::int64_t rope_stride = g.qk_rope_head_dim + unit * random.below(3);

  const DeviceArray<std::byte> memory = on_device(p, random.chance(0.2));
  const test::RequestsOnDevice requests(p.requests());
  const DeviceArray<KeyRun> runs(p.runs);
  const DeviceArray<bfloat16> latent(p.rows * latent_stride);
  const DeviceArray<bfloat16> rope_key(p.rows * rope_stride);
  latent.bytes().fill(kPoison);
  rope_key.bytes().fill(kPoison);
  const device::cuda::OwnedStream stream;
  cache::cuda::gather(g, trial.format, in_memory<const std::byte>(p.host.view, memory.data()), requests.get(),
                      View<const KeyRun>(runs.data(), {runs.size()}),
                      View<bfloat16>(latent.data(), 2, {p.rows, g.kv_lora_rank, 0, 0}, {latent_stride, 1, 0, 0}),
                      View<bfloat16>(rope_key.data(), 2, {p.rows, g.qk_rope_head_dim, 0, 0}, {rope_stride, 1, 0, 0}),
                      stream);
  device::cuda::synchronize(stream);

  const Expected expected = expected_rows(p, latent_stride, rope_stride);
  expect_same("latent", latent.download(), expected.latent, latent_stride, p);
  expect_same("rope key", rope_key.download(), expected.rope_key, rope_stride, p);
}

TEST_P(GpuGather, ReadsWhatTheCpuReads) {
  const std::uint64_t seed = test::fresh_seed();
  for (int i = 0; i < kCases && !HasFatalFailure(); ++i) {
    gather_case(GetParam(), seed + static_cast<std::uint64_t>(i));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, GpuGather, testing::ValuesIn(trials()), trial_name);

TEST(GpuGatherAddresses, PassFourGigabytes) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  const Geometry g{1, 512, 16, 64, 16};
  constexpr std::int64_t kPages = 5;
  constexpr std::int64_t kPageStride = std::int64_t{1} << 30;
  constexpr std::int64_t kRowStride = std::int64_t{1} << 30;  // of the output, in elements
  const std::int64_t row_bytes = cache_row_bytes(CacheFormat::bfloat16, g);
  const DeviceBuffer memory((kPages - 1) * kPageStride + row_bytes);
  const DeviceArray<bfloat16> latent((kPages - 1) * kRowStride + g.kv_lora_rank);
  const DeviceArray<bfloat16> rope_key((kPages - 1) * kRowStride + g.qk_rope_head_dim);

  std::vector<bfloat16> keys;
  for (std::int64_t i = 0; i < kPages * g.latent_dim(); ++i) {
    keys.emplace_back(random.normal());
  }
  for (std::int64_t page = 0; page < kPages; ++page) {
    memory.upload(std::as_bytes(std::span(keys).subspan(at(page * g.latent_dim()), at(g.latent_dim()))),
                  page * kPageStride);
  }
  const std::vector<std::int32_t> seq_len = {kPages};
  const std::vector<std::int32_t> table = {4, 2, 0, 3, 1};
  const test::RequestsOnDevice requests(
      {{}, View<const std::int32_t>(seq_len.data(), {1}), View<const std::int32_t>(table.data(), {1, kPages})});
  const DeviceArray<KeyRun> runs(std::vector<KeyRun>{{0, 0, kPages, 0}});
  const device::cuda::OwnedStream stream;
  cache::cuda::gather(g, CacheFormat::bfloat16, {memory.data(), kPages, 1, kPageStride, row_bytes}, requests.get(),
                      View<const KeyRun>(runs.data(), {1}),
                      View<bfloat16>(latent.data(), 2, {kPages, g.kv_lora_rank, 0, 0}, {kRowStride, 1, 0, 0}),
                      View<bfloat16>(rope_key.data(), 2, {kPages, g.qk_rope_head_dim, 0, 0}, {kRowStride, 1, 0, 0}),
                      stream);
  device::cuda::synchronize(stream);
  for (std::int64_t row = 0; row < kPages; ++row) {
    std::vector<bfloat16> got(at(g.latent_dim()));
    const auto bytes = std::as_writable_bytes(std::span(got));
    const auto rope_at = at(g.kv_lora_rank * 2);
    latent.bytes().download(bytes.first(rope_at), row * kRowStride * 2);
    rope_key.bytes().download(bytes.subspan(rope_at), row * kRowStride * 2);
    for (std::int64_t i = 0; i < g.latent_dim(); ++i) {
      ASSERT_EQ(got[at(i)].bits, keys[at(table[at(row)] * g.latent_dim() + i)].bits) << "row " << row << ", " << i;
    }
  }
}

TEST(GpuGatherGraph, ReplaysWithOtherLengthsPagesAndRuns) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  const Geometry g{1, 64, 16, 16, 16};
  constexpr std::int64_t kKeys = 100;
  const std::int64_t row_bytes = cache_row_bytes(CacheFormat::bfloat16, g);
  std::vector<bfloat16> keys;
  for (std::int64_t i = 0; i < kKeys * g.latent_dim(); ++i) {
    keys.emplace_back(random.normal());
  }
  const DeviceArray<bfloat16> memory(keys);
  const DeviceArray<std::int32_t> seq_len(1);
  const DeviceArray<std::int32_t> table(kKeys);
  const DeviceArray<KeyRun> runs(1);
  const DeviceArray<bfloat16> latent(kKeys * g.kv_lora_rank);
  const DeviceArray<bfloat16> rope_key(kKeys * g.qk_rope_head_dim);
  const Requests requests{
      {}, View<const std::int32_t>(seq_len.data(), {1}), View<const std::int32_t>(table.data(), {1, kKeys})};
  const test::CapturedGraph graph([&](Stream stream) {
    cache::cuda::gather(g, CacheFormat::bfloat16, {memory.bytes().data(), kKeys, 1, row_bytes, row_bytes}, requests,
                        View<const KeyRun>(runs.data(), {1}), View<bfloat16>(latent.data(), {kKeys, g.kv_lora_rank}),
                        View<bfloat16>(rope_key.data(), {kKeys, g.qk_rope_head_dim}), stream);
  });
  for (const std::int32_t length : {100, 37, 0, 1}) {
    std::vector<std::int32_t> pages;
    for (std::int64_t i = 0; i < kKeys; ++i) {
      pages.push_back(static_cast<std::int32_t>(random.below(kKeys)));
    }
    table.upload(pages);
    seq_len.upload(std::vector<std::int32_t>{length});
    runs.upload(std::vector<KeyRun>{{0, 0, length, 0}});
    latent.bytes().fill(kPoison);
    graph.replay();
    const std::vector<bfloat16> got = latent.download();
    for (std::int64_t row = 0; row < kKeys; ++row) {
      const std::uint16_t expected = row < length ? keys[at(pages[at(row)] * g.latent_dim())].bits : 0xa5a5;
      ASSERT_EQ(got[at(row * g.kv_lora_rank)].bits, expected) << "length " << length << ", row " << row;
    }
  }
}

}  // namespace
}  // namespace headrace
