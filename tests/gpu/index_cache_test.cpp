// SPDX-License-Identifier: Apache-2.0
// The indexer's key cache written on the GPU, against the processor's and the formula.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "captured_graph.h"
#include "device/cuda/memory.h"
#include "gpu.h"
#include "headrace/cuda_indexer.h"
#include "on_device.h"
#include "support/errors.h"
#include "support/index_cache_kit.h"
#include "support/random.h"

namespace headrace {
namespace {

using device::cuda::DeviceArray;
using Kit = test::IndexCacheKit<bfloat16>;

IndexerGeometry geometry(std::int64_t pool, std::int64_t dim) {
  IndexerGeometry indexer;
  indexer.num_heads = 1;
  indexer.head_dim = dim;
  indexer.kpool = pool > 0;
  indexer.pool = std::max<std::int64_t>(pool, 1);
  indexer.topk = 4 * indexer.pool;
  indexer.tail = pool > 0;
  return indexer;
}

/// A step's tensors on the device.
class StepOnDevice {
 public:
  StepOnDevice(const Kit& kit, const Kit::Step& step)
      : key_(step.key), gate_(step.gate), bias_(kit.bias), slots_(step.slots), requests_(step.requests) {}

  void append(const Kit& kit, const MutableCacheView& cache, Stream stream) const {
    const IndexerGeometry& g = kit.indexer;
    const std::int64_t tokens = slots_.size();
    const View<const bfloat16> gate(gate_.data(), {tokens, g.head_dim});
    const View<const float> bias(bias_.data(), {g.pool, g.head_dim});
    append_index_keys(g, cache, View<const bfloat16>(key_.data(), {tokens, g.head_dim}),
                      g.kpool ? ConstAnyView(gate) : ConstAnyView(), g.kpool ? bias : View<const float>(),
                      requests_.get(), View<const std::int64_t>(slots_.data(), {tokens}), *test::gpu(), stream);
  }

 private:
  DeviceArray<bfloat16> key_;
  DeviceArray<bfloat16> gate_;
  DeviceArray<float> bias_;
  DeviceArray<std::int64_t> slots_;
  test::RequestsOnDevice requests_;
};

/// The kit's cache, appended to on the device.
void append_on_device(Kit& kit, const Kit::Step& step) {
  const DeviceArray<bfloat16> memory(kit.memory);
  MutableCacheView cache = kit.cache();
  cache.data = reinterpret_cast<std::byte*>(memory.data());
  const device::cuda::OwnedStream stream;
  StepOnDevice(kit, step).append(kit, cache, stream);
  device::cuda::synchronize(stream);
  kit.memory = memory.download();
}

bool same_bytes(const std::vector<bfloat16>& a, const std::vector<bfloat16>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(bfloat16)) == 0;
}

class GpuIndexCache : public testing::Test {
 protected:
  Kit make(std::int64_t pool, std::int64_t dim, std::vector<std::int64_t> seq_lens, const Kit::Layout& layout) {
    return Kit(
        geometry(pool, dim), std::move(seq_lens), layout, random_, [this] { return random_.normal(); },
        [this] { return 2.0F * random_.normal(); });
  }
  /// A cache whose rows may or may not be multiples of 16 bytes apart.
  Kit::Layout random_layout() {
    const std::int64_t page_size = std::vector<std::int64_t>{1, 3, 64}[static_cast<std::size_t>(random_.below(3))];
    return random_.chance(0.5) ? Kit::Layout{page_size, 8 * random_.below(3), 8 * random_.below(3)}
                               : Kit::Layout{page_size, random_.below(6), random_.below(6)};
  }
  /// Compares pooled keys with the formula in double, and everything else, gaps included, with the processor's bytes.
  static void expect_cache(Kit& gpu, Kit& cpu) {
    const std::int64_t dim = gpu.indexer.head_dim;
    for (std::size_t b = 0; b < gpu.seq_len.size() && gpu.indexer.kpool; ++b) {
      for (std::int64_t last = gpu.indexer.pool - 1; last < gpu.done[b]; last += gpu.indexer.pool) {
        const std::vector<double> expected = gpu.candidate_key(b, last / gpu.indexer.pool);
        for (std::int64_t d = 0; d < dim; ++d) {
          bfloat16& pooled = gpu.row(b, last)[d];
          // One rounding to bfloat16, and float32 on the way: a few units of the keys averaged, which are below 4, for
          // each token of the pool, exp included.
          const double e = expected[static_cast<std::size_t>(d)];
          const double float32 = std::ldexp(4.0 * static_cast<double>(gpu.indexer.pool + 8), -23);
          ASSERT_NEAR(static_cast<double>(static_cast<float>(pooled)), e, std::ldexp(std::abs(e), -8) + 2 * float32)
              << "request " << b << ", position " << last << ", channel " << d;
          pooled = cpu.row(b, last)[d];
        }
      }
    }
    EXPECT_TRUE(same_bytes(gpu.memory, cpu.memory));
  }

  std::uint64_t seed_ = test::fresh_seed();
  test::Random random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
};

TEST_F(GpuIndexCache, HoldsKeysGatesAndPooledKeys) {
  for (const std::int64_t pool : {0, 1, 4, 16}) {
    for (const std::int64_t page_size : {1, 3, 64}) {
      for (const std::int64_t dim : {6, 16, 128, 272}) {
        SCOPED_TRACE(testing::Message() << "pool " << pool << ", page size " << page_size << ", dim " << dim);
        Kit cpu = make(pool, dim, {70, 0, 15, 16, 1}, {page_size, 8, 16});
        Kit gpu = cpu;
        const Kit::Step step = cpu.next(cpu.seq_len);
        gpu.done = gpu.seq_len;
        cpu.append(step);
        append_on_device(gpu, step);
        expect_cache(gpu, cpu);
      }
    }
  }
}

TEST_F(GpuIndexCache, TakesAnyStrides) {
  for (int round = 0; round < 20; ++round) {
    Kit cpu = make(random_.below(6), 8 * (1 + random_.below(5)), {40, 1, 9}, random_layout());
    Kit gpu = cpu;
    const Kit::Step step = cpu.next(cpu.seq_len);
    gpu.done = gpu.seq_len;
    cpu.append(step);
    append_on_device(gpu, step);
    expect_cache(gpu, cpu);
  }
}

TEST_F(GpuIndexCache, ChunksGiveTheSameBits) {
  for (int round = 0; round < 40; ++round) {
    const std::int64_t pool = random_.below(17);
    SCOPED_TRACE(testing::Message() << "round " << round << ", pool " << pool);
    Kit whole = make(pool, 16, {random_.below(90), random_.below(90), 3}, random_layout());
    Kit chunked = whole;
    append_on_device(whole, whole.next(whole.seq_len));
    while (!chunked.finished()) {
      append_on_device(chunked, chunked.next(chunked.some(random_, 1 + random_.below(30))));
    }
    ASSERT_TRUE(same_bytes(whole.memory, chunked.memory));
  }
}

// A prefix found in the cache is skipped; the pool is read from what is there. Slots that do not exist count as -1.
TEST_F(GpuIndexCache, SkipsTokensWithoutASlot) {
  for (const std::int64_t pool : {0, 4}) {
    Kit kit = make(pool, 16, {11}, {3, 0, 0});
    append_on_device(kit, kit.next({11}));
    const std::vector<bfloat16> complete = kit.memory;
    kit.done = {0};
    Kit::Step step = kit.next({11});
    const std::int64_t slots = kit.cache().num_slots();
    const std::vector<std::int64_t> none{-1,        slots, std::numeric_limits<std::int64_t>::min(), -2,
                                         slots + 1, -1,    std::numeric_limits<std::int64_t>::max()};
    const std::vector<std::size_t> skipped{0, 1, 2, 3, 5, 8, 10};
    for (std::size_t i = 0; i < skipped.size(); ++i) {
      step.slots[skipped[i]] = none[i];
      std::fill_n(step.key.begin() + static_cast<std::ptrdiff_t>(skipped[i] * 16), 16, bfloat16(77.0F));
    }
    append_on_device(kit, step);
    EXPECT_TRUE(same_bytes(kit.memory, complete));
  }
}

// A request that is cut back and continues otherwise writes the pool's last token anew and pools again.
TEST_F(GpuIndexCache, RewrittenTokensPoolAnew) {
  Kit gpu = make(4, 16, {12}, {5, 0, 0});
  append_on_device(gpu, gpu.next({12}));
  for (std::size_t i = 6UL * 16; i < gpu.key[0].size(); ++i) {
    gpu.key[0][i] = bfloat16(random_.normal());
  }
  Kit cpu = gpu;
  cpu.done = {6};
  gpu.done = {12};
  const Kit::Step step = cpu.next({6});
  cpu.append(step);
  append_on_device(gpu, step);
  expect_cache(gpu, cpu);
}

TEST_F(GpuIndexCache, LargeGatesDoNotOverflow) {
  Kit kit = make(4, 16, {4}, {64, 0, 0});
  for (std::size_t i = 0; i < kit.gate[0].size(); ++i) {
    kit.gate[0][i] = bfloat16(i / 16 == 2 ? 3e4F : -3e4F);
  }
  append_on_device(kit, kit.next({4}));
  EXPECT_EQ(0, std::memcmp(kit.row(0, 3), &kit.key[0][2UL * 16], 16 * sizeof(bfloat16)));
}

// Where a pool's other tokens have no page, the last keeps its own key, and the other pools are made as ever.
TEST_F(GpuIndexCache, PagesOutsideTheCacheAreNotRead) {
  Kit kit = make(4, 16, {23, 9}, {2, 0, 0});
  const Kit::Step step = kit.next(kit.seq_len);
  Kit expected = kit;
  append_on_device(expected, step);
  std::copy_n(kit.key[0].begin() + 7L * 16, 16, expected.row(0, 7));
  const auto num_pages = static_cast<std::int32_t>(kit.cache().num_pages);
  for (const std::int32_t page : {-1, num_pages, std::numeric_limits<std::int32_t>::max()}) {
    Kit broken = kit;
    broken.table[2] = page;  // positions 4 and 5 of the first request
    Kit::Step with_page = step;
    const View<const std::int32_t>& table = step.requests.block_table;
    with_page.requests.block_table = {broken.table.data(), 2, table.shape(), table.strides()};
    append_on_device(broken, with_page);
    EXPECT_TRUE(same_bytes(broken.memory, expected.memory)) << "page " << page;
  }
}

TEST_F(GpuIndexCache, NoTokens) {
  Kit kit = make(4, 16, {5, 0}, {4, 0, 0});
  const std::vector<bfloat16> before = kit.memory;
  append_on_device(kit, kit.next({0, 0}));
  EXPECT_TRUE(same_bytes(kit.memory, before));
}

TEST_F(GpuIndexCache, GraphsReplayWithOtherLengthsAndSlots) {
  Kit kit = make(4, 16, {60}, {3, 0, 0});
  const std::int64_t tokens = 20;
  const DeviceArray<bfloat16> memory(kit.memory);
  const DeviceArray<bfloat16> key(tokens * 16);
  const DeviceArray<bfloat16> gate(tokens * 16);
  const DeviceArray<float> bias(kit.bias);
  const DeviceArray<std::int64_t> slots(tokens);
  const DeviceArray<std::int32_t> query_start(2);
  const DeviceArray<std::int32_t> seq_len(1);
  const DeviceArray<std::int32_t> table(kit.table);
  MutableCacheView cache = kit.cache();
  cache.data = reinterpret_cast<std::byte*>(memory.data());
  const Requests requests{View<const std::int32_t>(query_start.data(), {2}),
                          View<const std::int32_t>(seq_len.data(), {1}),
                          View<const std::int32_t>(table.data(), {1, table.size()})};
  const test::CapturedGraph graph([&](Stream stream) {
    append_index_keys(kit.indexer, cache, View<const bfloat16>(key.data(), {tokens, 16}),
                      View<const bfloat16>(gate.data(), {tokens, 16}), View<const float>(bias.data(), {4, 16}),
                      requests, View<const std::int64_t>(slots.data(), {tokens}), *test::gpu(), stream);
  });
  Kit eager = kit;
  for (const std::int64_t more : {20, 7, 1, 18, 14}) {
    Kit::Step step = eager.next({more});
    append_on_device(eager, step);
    step.key.resize(static_cast<std::size_t>(tokens * 16), bfloat16(99.0F));
    step.gate.resize(static_cast<std::size_t>(tokens * 16), bfloat16(99.0F));
    step.slots.resize(static_cast<std::size_t>(tokens), -1);
    key.upload(step.key);
    gate.upload(step.gate);
    slots.upload(step.slots);
    query_start.upload(step.query_start);
    seq_len.upload(step.seq_len);
    graph.replay();
    ASSERT_TRUE(same_bytes(memory.download(), eager.memory)) << more << " more tokens";
  }
}

TEST_F(GpuIndexCache, RefusesWhatDoesNotSuit) {
  const Kit kit = make(2, 8, {2}, {4, 0, 0});
  std::vector<bfloat16> memory(4096);
  const MutableCacheView cache{reinterpret_cast<std::byte*>(memory.data()), 8, 4, 4 * 64, 64};
  const std::vector<std::int32_t> numbers{0, 2};
  const std::vector<std::int64_t> slots{0, 1};
  const Requests requests{View<const std::int32_t>(numbers.data(), {2}), View<const std::int32_t>(numbers.data(), {1}),
                          View<const std::int32_t>(numbers.data(), {1, 1})};
  const View<const bfloat16> rows(memory.data(), {2, 8});
  const View<const float> bias(kit.bias.data(), {2, 8});
  const auto append = [&](std::int64_t pool, std::int64_t dim, ConstAnyView key, ConstAnyView gate, View<const float> b,
                          const Requests& r, std::int64_t num_slots) {
    return [=, &slots] {
      append_index_keys(geometry(pool, dim), cache, key, gate, b, r,
                        View<const std::int64_t>(slots.data(), {num_slots}), *test::gpu(), Stream{});
    };
  };
  using test::throws_error;
  EXPECT_TRUE(throws_error(append(2, 8, rows, {}, bias, requests, 2), "index gate"));
  EXPECT_TRUE(throws_error(append(2, 8, rows, rows, {}, requests, 2), "offset_bias"));
  EXPECT_TRUE(throws_error(append(0, 8, rows, rows, {}, requests, 2), "none for a lightning indexer"));
  EXPECT_TRUE(throws_error(append(2, 8, bias, rows, bias, requests, 2), "index key"));
  EXPECT_TRUE(throws_error(append(2, 6, rows, rows, bias, requests, 2), "index key"));
  EXPECT_TRUE(throws_error(append(2, 17, rows, rows, bias, requests, 2), "index cache"));
  EXPECT_TRUE(throws_error(append(2, 8, rows, rows, bias, requests, 1), "slot_mapping"));
  EXPECT_TRUE(throws_error(
      append(2, 8, rows, rows, bias, {requests.seq_len, requests.seq_len, requests.block_table}, 2), "query_start"));
  const View<const bfloat16> columns(memory.data(), 2, {2, 8, 0, 0}, {1, 2, 0, 0});
  EXPECT_TRUE(throws_error(append(2, 8, columns, rows, bias, requests, 2), "contiguous rows"));
}

}  // namespace
}  // namespace headrace
