// SPDX-License-Identifier: Apache-2.0
//
// append whatever slots the device holds: nothing but the rows that they name is written, and tokens whose slots are
// sound are stored as always.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <vector>

#include "device/cuda/stream.h"
#include "gpu.h"
#include "headrace/cache.h"
#include "hostile_kit.h"
#include "support/cache_rows.h"
#include "support/random.h"

namespace headrace::test {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

class HostileAppend : public testing::TestWithParam<CacheFormat> {
 protected:
  [[nodiscard]] std::vector<bfloat16> random_values(std::int64_t n) {
    std::vector<bfloat16> values(at(n));
    std::ranges::generate(values, [&] { return bfloat16(random_.normal()); });
    return values;
  }
  /// Different ones, in any order.
  [[nodiscard]] std::vector<std::int64_t> random_slots(std::int64_t tokens, std::int64_t slots) {
    std::vector<std::int64_t> all(at(slots));
    std::iota(all.begin(), all.end(), 0);
    for (std::size_t i = all.size(); i > 1; --i) {
      std::swap(all[i - 1], all[at(random_.below(static_cast<std::int64_t>(i)))]);
    }
    all.resize(at(tokens));
    return all;
  }

  std::uint64_t seed_ = fresh_seed();
  Random random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
};

TEST_P(HostileAppend, WritesTheRowsThatSlotsNameAndNothingElse) {
  constexpr std::byte kFilling{0xa5};
  const CacheFormat format = GetParam();
  for (int draw = 0; draw < hostile_draws(); ++draw) {
    SCOPED_TRACE(testing::Message() << "draw " << draw);
    const bool ds = format == CacheFormat::fp8_ds_mla;
    const Geometry geometry{1, ds ? 512 : 8 * (1 + random_.below(20)), 16, random_.chance(0.5) ? 64 : 0, 16};
    MutableCacheView cache;
    cache.num_pages = 1 + random_.below(6);
    cache.page_size = 1 + random_.below(9);
    cache.row_bytes = ds && random_.chance(0.5) ? 656 : cache_row_bytes(format, geometry);
    cache.row_stride = cache.row_bytes + row_alignment(format) * random_.below(3);
    cache.page_stride = cache.page_size * cache.row_stride + row_alignment(format) * random_.below(3);
    const std::int64_t bytes =
        (cache.num_pages - 1) * cache.page_stride + (cache.page_size - 1) * cache.row_stride + cache.row_bytes;
    const GuardedMemory memory(bytes, Guard::wide, kFilling);
    cache.data = memory.data();

    const Guard guard = random_guard(random_);
    const std::int64_t tokens = 1 + random_.below(cache.num_slots());
    const std::vector<bfloat16> latent = random_values(tokens * geometry.kv_lora_rank);
    const std::vector<bfloat16> rope_key = random_values(tokens * geometry.qk_rope_head_dim);
    const GuardedInput<bfloat16> latent_input(View<const bfloat16>(latent.data(), {tokens, geometry.kv_lora_rank}),
                                              guard, std::byte{0xff});
    const GuardedInput<bfloat16> rope_input(View<const bfloat16>(rope_key.data(), {tokens, geometry.qk_rope_head_dim}),
                                            guard, std::byte{0xff});
    const std::vector<std::int64_t> sound = random_slots(tokens, cache.num_slots());
    std::vector<std::int64_t> slots = sound;
    for (std::int64_t n = 1 + random_.below(tokens); n > 0; --n) {
      slots[at(random_.below(tokens))] = hostile<std::int64_t>(random_, {cache.num_slots(), std::int64_t{1} << 32});
    }
    const GuardedInput<std::int64_t> slot_input(View<const std::int64_t>(sound.data(), {tokens}), guard, std::byte{0});
    const auto run = [&] {
      memory.refill();
      append(geometry, format, cache, latent_input.view(), rope_input.view(), slot_input.view(), *gpu(), Stream{});
      device::cuda::synchronize(Stream{});
    };
    run();
    const std::vector<std::byte> expected = memory.download();
    slot_input.put(slots);
    run();

    std::map<std::int64_t, int> named;
    for (const std::int64_t slot : slots) {
      ++named[slot];
    }
    std::vector<bool> may_change(at(bytes));
    const std::vector<std::byte> written = memory.download();
    for (std::int64_t token = 0; token < tokens; ++token) {
      const std::int64_t slot = slots[at(token)];
      if (slot < 0 || slot >= cache.num_slots()) {
        continue;
      }
      const std::ptrdiff_t row = cache.row(slot) - cache.data;
      std::fill_n(may_change.begin() + row, cache.row_bytes, true);
      if (slot == sound[at(token)] && named[slot] == 1) {
        ASSERT_TRUE(std::equal(written.begin() + row, written.begin() + row + cache.row_bytes, expected.begin() + row))
            << "token " << token << " in slot " << slot;
      }
    }
    ASSERT_EQ(memory.damage([&](std::int64_t byte) { return may_change[at(byte)]; }), std::nullopt)
        << testing::PrintToString(slots);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, HostileAppend,
                         testing::Values(CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8,
                                         CacheFormat::fp8_ds_mla),
                         [](const auto& format) { return std::string(name_of(format.param)); });

}  // namespace
}  // namespace headrace::test
