// SPDX-License-Identifier: Apache-2.0
// append() byte by byte against an encoder of the tests' own, and what it refuses.
#include "headrace/cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "headrace/error.h"
#include "support/cache_rows.h"
#include "support/random.h"

namespace headrace {
namespace {

constexpr CacheFormat kFormats[] = {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8,
                                    CacheFormat::fp8_ds_mla};
constexpr std::byte kUntouched{0x5a};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// A cache with gaps and the tokens to be written to it.
struct Problem {
  Geometry geometry;
  CacheFormat format = CacheFormat::float32;
  std::vector<std::byte> memory;
  MutableCacheView cache;
  std::vector<float> latent;
  std::vector<float> rope_key;
  std::vector<bfloat16> latent_bf16;
  std::vector<bfloat16> rope_key_bf16;
  std::vector<std::int64_t> slots;

  [[nodiscard]] std::int64_t tokens() const { return static_cast<std::int64_t>(slots.size()); }
  [[nodiscard]] View<const std::int64_t> slot_mapping() const { return {slots.data(), {tokens()}}; }
  [[nodiscard]] View<const float> latent_view() const { return {latent.data(), {tokens(), geometry.kv_lora_rank}}; }
  [[nodiscard]] View<const float> rope_view() const { return {rope_key.data(), {tokens(), geometry.qk_rope_head_dim}}; }
  void append(int threads = 1) {
    headrace::append(geometry, format, cache, latent_view(), rope_view(), slot_mapping(), threads);
  }
  void append_bf16() {
    headrace::append(
        geometry, format, cache, View<const bfloat16>(latent_bf16.data(), {tokens(), geometry.kv_lora_rank}),
        View<const bfloat16>(rope_key_bf16.data(), {tokens(), geometry.qk_rope_head_dim}), slot_mapping(), 1);
  }
};

std::vector<float> values(test::Random& random, std::int64_t n, CacheFormat format) {
  std::vector<float> result(at(n));
  for (float& value : result) {
    // Magnitudes from far below the formats' resolution to beyond what they hold.
    const int exponent = format == CacheFormat::fp8 || format == CacheFormat::fp8_ds_mla
                             ? static_cast<int>(random.below(30)) - 20
                             : static_cast<int>(random.below(5)) - 2;
    value = std::ldexp(random.normal(), exponent);
  }
  return result;
}

std::vector<bfloat16> to_bf16(const std::vector<float>& from) {
  return std::vector<bfloat16>(from.begin(), from.end());
}

std::vector<float> to_float(const std::vector<bfloat16>& from) { return std::vector<float>(from.begin(), from.end()); }

Problem random_problem(CacheFormat format, test::Random& random) {
  Problem p;
  p.format = format;
  p.geometry = {1, 1 + random.below(70), 16, 2 * random.below(20), 16};
  if (format == CacheFormat::fp8_ds_mla) {
    p.geometry.kv_lora_rank = 512;
    p.geometry.qk_rope_head_dim = random.chance(0.5) ? 64 : 0;
  }
  const std::int64_t alignment = test::row_alignment(format);
  const std::int64_t row_stride = cache_row_bytes(format, p.geometry) + alignment * random.below(40);
  const std::int64_t page_size = 1 + random.below(9);
  const std::int64_t page_stride = page_size * row_stride + alignment * random.below(20);
  const std::int64_t num_pages = 1 + random.below(6);
  p.memory.assign(at(num_pages * page_stride), kUntouched);
  p.cache = {p.memory.data(), num_pages, page_size, page_stride, row_stride, 0.37F};

  std::vector<std::int64_t> free;
  for (std::int64_t slot = 0; slot < p.cache.num_slots(); ++slot) {
    free.push_back(slot);
  }
  for (std::int64_t t = random.below(p.cache.num_slots() + 1); t > 0; --t) {
    const auto pick = free.begin() + random.below(static_cast<std::int64_t>(free.size()));
    p.slots.push_back(random.chance(0.2) ? -1 : *pick);
    free.erase(pick);
  }
  p.latent = values(random, p.tokens() * p.geometry.kv_lora_rank, format);
  p.rope_key = values(random, p.tokens() * p.geometry.qk_rope_head_dim, format);
  p.latent_bf16 = to_bf16(p.latent);
  p.rope_key_bf16 = to_bf16(p.rope_key);
  return p;
}

/// What the memory must hold after append: rows in their slots, everything else untouched.
std::vector<std::byte> expected_memory(const Problem& p, const std::vector<float>& latent,
                                       const std::vector<float>& rope_key) {
  std::vector<std::byte> memory(p.memory.size(), kUntouched);
  for (std::int64_t t = 0; t < p.tokens(); ++t) {
    if (p.slots[at(t)] >= 0) {
      const std::int64_t rank = p.geometry.kv_lora_rank;
      const std::int64_t rope = p.geometry.qk_rope_head_dim;
      const auto row = test::encode_row(p.format, std::span(latent).subspan(at(t * rank), at(rank)),
                                        std::span(rope_key).subspan(at(t * rope), at(rope)), p.cache.scale);
      std::ranges::copy(row, memory.begin() + (p.cache.row(p.slots[at(t)]) - p.cache.data));
    }
  }
  return memory;
}

class Append : public testing::TestWithParam<CacheFormat> {};

TEST_P(Append, WritesTheFormatsBytesAndNothingElse) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random random(seed);
  for (int i = 0; i < 200; ++i) {
    Problem p = random_problem(GetParam(), random);
    Problem bf16 = p;
    bf16.cache.data = bf16.memory.data();
    p.append(1 + static_cast<int>(random.below(3)));
    ASSERT_EQ(p.memory, expected_memory(p, p.latent, p.rope_key));
    bf16.append_bf16();
    ASSERT_EQ(bf16.memory, expected_memory(bf16, to_float(bf16.latent_bf16), to_float(bf16.rope_key_bf16)));
  }
}

TEST_P(Append, ReadsStridedInputs) {
  test::Random random(test::fresh_seed());
  Problem p = random_problem(GetParam(), random);
  while (p.tokens() < 2) {
    p = random_problem(GetParam(), random);
  }
  const std::int64_t rank = p.geometry.kv_lora_rank;
  const std::int64_t rope = p.geometry.qk_rope_head_dim;
  // Latent and rope key as columns of one matrix, which is how a projection leaves them.
  std::vector<float> joined;
  for (std::int64_t t = 0; t < p.tokens(); ++t) {
    joined.insert(joined.end(), p.latent.begin() + t * rank, p.latent.begin() + (t + 1) * rank);
    joined.insert(joined.end(), p.rope_key.begin() + t * rope, p.rope_key.begin() + (t + 1) * rope);
  }
  const View<const float> latent(joined.data(), 2, {p.tokens(), rank, 0, 0}, {rank + rope, 1, 0, 0});
  const View<const float> rope_key(joined.data() + rank, 2, {p.tokens(), rope, 0, 0}, {rank + rope, 1, 0, 0});
  append(p.geometry, p.format, p.cache, latent, rope_key, p.slot_mapping(), 1);
  EXPECT_EQ(p.memory, expected_memory(p, p.latent, p.rope_key));
}

TEST_P(Append, RefusesBadInputAndWritesNothing) {
  test::Random random(test::fresh_seed());
  Problem p = random_problem(GetParam(), random);
  while (p.tokens() < 3 || (p.geometry.qk_rope_head_dim == 0)) {
    p = random_problem(GetParam(), random);
  }
  const auto refuses = [&](const std::string& what, const std::function<void(Problem&)>& spoil) {
    Problem bad = p;
    bad.cache.data = bad.memory.data();
    spoil(bad);
    const std::vector<std::byte> before = bad.memory;
    EXPECT_THROW(bad.append(), Error) << what;
    EXPECT_TRUE(bad.memory == before) << what << ": something was written";
  };
  refuses("slot past the cache", [](Problem& bad) { bad.slots.back() = bad.cache.num_slots(); });
  refuses("huge slot", [](Problem& bad) { bad.slots.back() = std::numeric_limits<std::int64_t>::max(); });
  refuses("slot -2", [](Problem& bad) { bad.slots.back() = -2; });
  refuses("row stride below the row", [](Problem& bad) {
    bad.cache.row_stride = cache_row_bytes(bad.format, bad.geometry) - test::row_alignment(bad.format);
  });
  refuses("page stride below the page", [](Problem& bad) {
    bad.cache.num_pages = 2;
    bad.cache.page_stride = (bad.cache.page_size - 1) * bad.cache.row_stride;
  });
  refuses("page size 0", [](Problem& bad) { bad.cache.page_size = 0; });
  refuses("negative page count", [](Problem& bad) { bad.cache.num_pages = -1; });
  refuses("no memory", [](Problem& bad) { bad.cache.data = nullptr; });
  refuses("odd rope", [](Problem& bad) { bad.geometry.qk_rope_head_dim += 1; });
  if (p.format == CacheFormat::fp8) {
    for (const float scale :
         {0.0F, -1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      refuses("scale " + std::to_string(scale), [scale](Problem& bad) { bad.cache.scale = scale; });
    }
  }

  const std::vector<std::byte> before = p.memory;
  const View<const float> rope = p.rope_view();
  const std::int64_t n = p.tokens();
  const std::int64_t rank = p.geometry.kv_lora_rank;
  const View<const float> flat(p.latent.data(), {n * rank});
  const View<const std::int32_t> integers(reinterpret_cast<const std::int32_t*>(p.latent.data()), {n, rank});
  Geometry other = p.geometry;
  other.kv_lora_rank += 1;
  EXPECT_THROW(append(other, p.format, p.cache, p.latent_view(), rope, p.slot_mapping()), Error);
  EXPECT_THROW(append(p.geometry, p.format, p.cache, flat, rope, p.slot_mapping()), Error);
  EXPECT_THROW(append(p.geometry, p.format, p.cache, integers, rope, p.slot_mapping()), Error);
  EXPECT_THROW(append(p.geometry, p.format, p.cache, p.latent_view(), rope.slice(0, n - 1), p.slot_mapping()), Error);
  EXPECT_THROW(append(p.geometry, p.format, p.cache, p.latent_view(), rope, p.slot_mapping().slice(0, n - 1)), Error);
  EXPECT_THROW(append(p.geometry, p.format, p.cache, p.latent_view(),
                      View<const bfloat16>(p.rope_key_bf16.data(), {n, p.geometry.qk_rope_head_dim}), p.slot_mapping()),
               Error);
  EXPECT_TRUE(p.memory == before);
}

INSTANTIATE_TEST_SUITE_P(Formats, Append, testing::ValuesIn(kFormats),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(CacheFormat, RowBytesAndNames) {
  const Geometry deepseek{16, 512, 128, 64, 128};
  const Geometry nope{16, 512, 192, 0, 256};
  EXPECT_EQ(cache_row_bytes(CacheFormat::float32, deepseek), 2304);
  EXPECT_EQ(cache_row_bytes(CacheFormat::bfloat16, deepseek), 1152);
  EXPECT_EQ(cache_row_bytes(CacheFormat::fp8, deepseek), 576);
  EXPECT_EQ(cache_row_bytes(CacheFormat::fp8_ds_mla, deepseek), 656);
  EXPECT_EQ(cache_row_bytes(CacheFormat::fp8_ds_mla, nope), 528);
  EXPECT_THROW(static_cast<void>(cache_row_bytes(CacheFormat::fp8_ds_mla, Geometry{16, 256, 128, 64, 128})), Error);
  EXPECT_THROW(static_cast<void>(cache_row_bytes(CacheFormat::fp8_ds_mla, Geometry{16, 512, 128, 32, 128})), Error);
  EXPECT_EQ(name_of(CacheFormat::bfloat16), "bf16");
  EXPECT_EQ(name_of(CacheFormat::fp8_ds_mla), "fp8_ds_mla");
}

// NoPE in fp8_ds_mla: rows of 528 bytes, or of 656 whose rope bytes append writes as zero.
class NopeRow : public testing::TestWithParam<std::int64_t> {};

TEST_P(NopeRow, EndsAfterTheScalesOrInZeros) {
  const std::int64_t row_bytes = GetParam();
  const std::int64_t stride = row_bytes + 24;
  test::Random random(test::fresh_seed());
  const std::vector<float> latent = values(random, 2 * 512, CacheFormat::float32);
  std::vector<std::byte> memory(at(3 * stride), kUntouched);
  const MutableCacheView cache{memory.data(), 1, 3, 3 * stride, stride, 1.0F, row_bytes};
  const std::int64_t slots[] = {2, 0};
  append(Geometry{1, 512, 16, 0, 16}, CacheFormat::fp8_ds_mla, cache, View<const float>(latent.data(), {2, 512}),
         ConstAnyView(), View<const std::int64_t>(slots, {2}), 1);

  std::vector<std::byte> expected(memory.size(), kUntouched);
  for (std::int64_t t = 0; t < 2; ++t) {
    std::vector<std::byte> row =
        test::encode_row(CacheFormat::fp8_ds_mla, std::span(latent).subspan(at(512 * t), 512), {}, 1.0F);
    ASSERT_EQ(row.size(), 528U);
    row.resize(at(row_bytes), std::byte{0});
    std::ranges::copy(row, expected.begin() + slots[t] * stride);
  }
  EXPECT_EQ(memory, expected);
}

INSTANTIATE_TEST_SUITE_P(Bytes, NopeRow, testing::Values(528, 656));

TEST(AppendRow, KnownBytesOfOneDsMlaRow) {
  // Group 0 holds 448 and so has scale 1; group 1 is all zero and has the smallest scale; group 2 peaks at -896 (scale
  // 2); group 3 at 224 (scale 0.5).
  std::vector<float> latent(512, 0.0F);
  latent[0] = 448.0F;
  latent[1] = -1.0F;
  latent[256] = -896.0F;
  latent[257] = 2.0F;
  latent[384] = 224.0F;
  const std::vector<float> rope_key(64, 1.0F);
  std::vector<std::byte> memory(656);
  const std::int64_t slot = 0;
  append(Geometry{1, 512, 16, 64, 16}, CacheFormat::fp8_ds_mla, {memory.data(), 1, 1, 656, 656, 1.0F},
         View<const float>(latent.data(), {1, 512}), View<const float>(rope_key.data(), {1, 64}),
         View<const std::int64_t>(&slot, {1}), 1);
  EXPECT_EQ(memory[0], std::byte{0x7e});
  EXPECT_EQ(memory[1], std::byte{0xb8});  // -1
  EXPECT_EQ(memory[256], std::byte{0xfe});
  EXPECT_EQ(memory[257], std::byte{0x38});  // 2 / 2
  EXPECT_EQ(memory[384], std::byte{0x7e});
  float scales[4];
  std::memcpy(scales, memory.data() + 512, sizeof scales);
  EXPECT_EQ(scales[0], 1.0F);
  EXPECT_EQ(scales[1], 1e-4F / 448.0F);
  EXPECT_EQ(scales[2], 2.0F);
  EXPECT_EQ(scales[3], 0.5F);
  EXPECT_EQ(memory[528], std::byte{0x80});  // bfloat16 1 is 0x3f80, little-endian
  EXPECT_EQ(memory[529], std::byte{0x3f});
}

TEST(AppendRow, NoTokensWriteNothing) {
  std::vector<std::byte> memory(64, kUntouched);
  append(Geometry{1, 8, 16, 0, 16}, CacheFormat::float32, {memory.data(), 1, 2, 64, 32, 1.0F},
         View<const float>(nullptr, {0, 8}), ConstAnyView(), View<const std::int64_t>(nullptr, {0}));
  EXPECT_EQ(memory, std::vector<std::byte>(64, kUntouched));
}

}  // namespace
}  // namespace headrace
