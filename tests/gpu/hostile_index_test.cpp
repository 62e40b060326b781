// SPDX-License-Identifier: Apache-2.0
//
// The indexer's functions whatever the device holds in lengths, block table, slots and scoring_begin: nothing outside
// their views is written or read, and requests whose integers are sound get what they always get.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/cuda/stream.h"
#include "gpu.h"
#include "headrace/cuda_indexer.h"
#include "hostile_kit.h"
#include "support/index_cache_kit.h"
#include "support/random.h"

namespace headrace::test {
namespace {

using Kit = IndexCacheKit<bfloat16>;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

template <class T>
View<const T> view_of(const std::vector<T>& values, std::initializer_list<std::int64_t> shape) {
  return View<const T>(values.data(), shape);
}

class HostileIndexer : public testing::TestWithParam<bool> {
 protected:
  static constexpr std::byte kNan{0xff};

  [[nodiscard]] Kit random_kit() {
    IndexerGeometry indexer;
    indexer.num_heads = 1 + random_.below(3);
    indexer.head_dim = 16 * (1 + random_.below(3));
    indexer.kpool = GetParam();
    indexer.pool = indexer.kpool ? 1 + random_.below(5) : 1;
    indexer.tail = indexer.kpool;
    indexer.topk = indexer.pool * (1 + random_.below(8));
    const Kit::Layout layout{1 + random_.below(9), 8 * random_.below(2), 8 * random_.below(2)};
    std::vector<std::int64_t> seq_lens;
    for (std::int64_t n = 2 + random_.below(4); n > 0; --n) {
      seq_lens.push_back(1 + random_.below(60));
    }
    return Kit(
        indexer, std::move(seq_lens), layout, random_, [this] { return random_.normal(); },
        [this] { return random_.normal(); });
  }
  /// Some tokens come in an earlier step, all others in the one that is returned.
  [[nodiscard]] Kit::Step last_step(Kit& kit) {
    kit.append(kit.next(kit.some(random_, 20)));
    std::vector<std::int64_t> rest;
    for (std::size_t b = 0; b < kit.seq_len.size(); ++b) {
      rest.push_back(kit.seq_len[b] - kit.done[b]);
    }
    return kit.next(rest);
  }
  [[nodiscard]] Lengths random_lengths(const Lengths& sound, const Kit::Step& step, std::int64_t pages) {
    Lengths lengths = sound;
    const std::int64_t which = random_.below(8);
    if ((which & 1) != 0) {
      lengths.spoil_query_start(random_, step.tokens);
    }
    if ((which & 2) != 0) {
      lengths.spoil_seq_len(random_, *std::ranges::max_element(sound.seq_len));
    }
    if ((which & 4) != 0) {
      lengths.spoil_block_table(random_, pages);
    }
    return lengths;
  }

  std::uint64_t seed_ = fresh_seed();
  Random random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
};

TEST_P(HostileIndexer, AppendWritesTheRowsThatSlotsNameAndNothingElse) {
  for (int draw = 0; draw < hostile_draws(); ++draw) {
    SCOPED_TRACE(testing::Message() << "draw " << draw);
    Kit kit = random_kit();
    const Kit::Step step = last_step(kit);
    if (step.tokens == 0) {
      continue;
    }
    MutableCacheView cache = kit.cache();
    const auto bytes = std::as_bytes(std::span(kit.memory));
    const std::int64_t row_bytes = kit.row_values() * 2;
    // Without the gap behind the last row: nobody may touch it.
    const std::int64_t reach =
        (cache.num_pages - 1) * cache.page_stride + (cache.page_size - 1) * cache.row_stride + row_bytes;
    const GuardedMemory memory(reach, Guard::wide, kNan);
    cache.data = memory.data();

    const IndexerGeometry& g = kit.indexer;
    const Guard guard = random_guard(random_);
    const GuardedInput<bfloat16> key(view_of(step.key, {step.tokens, g.head_dim}), guard, kNan);
    const GuardedInput<bfloat16> gate(view_of(step.gate, {step.tokens, g.head_dim}), guard, kNan);
    const GuardedInput<float> bias(view_of(kit.bias, {g.pool, g.head_dim}), guard, kNan);
    const GuardedInput<std::int64_t> slots(view_of(step.slots, {step.tokens}), guard, std::byte{0});
    const GuardedRequests requests(step.requests, guard);
    const auto run = [&] {
      memory.upload(bytes.first(at(reach)));
      append_index_keys(g, cache, key.view(), g.kpool ? ConstAnyView(gate.view()) : ConstAnyView(),
                        g.kpool ? bias.view() : View<const float>(), requests.get(), slots.view(), *gpu(), Stream{});
      device::cuda::synchronize(Stream{});
    };
    run();
    const std::vector<std::byte> expected = memory.download();

    const Lengths sound(step.requests);
    const Lengths lengths = random_lengths(sound, step, cache.num_pages);
    std::vector<std::int64_t> hostile_slots = step.slots;
    std::set<std::int64_t> spoilt_tokens;
    for (std::int64_t n = random_.below(4); n > 0; --n) {
      const std::int64_t token = random_.below(step.tokens);
      hostile_slots[at(token)] = hostile<std::int64_t>(random_, {cache.num_slots(), std::int64_t{1} << 32});
      spoilt_tokens.insert(token);
    }
    requests.put(lengths);
    slots.put(hostile_slots);
    run();

    ASSERT_EQ(memory.damage([](std::int64_t) { return true; }), std::nullopt);
    const std::vector<std::byte> written = memory.download();
    std::vector<bool> may_change(at(reach));
    for (const std::int64_t slot : hostile_slots) {
      if (slot >= 0 && slot < cache.num_slots()) {
        std::fill_n(may_change.begin() + (cache.row(slot) - cache.data), row_bytes, true);
      }
    }
    for (std::int64_t i = 0; i < reach; ++i) {
      ASSERT_TRUE(may_change[at(i)] || written[at(i)] == bytes[at(i)]) << "byte " << i << " of the cache";
    }
    for (std::size_t b = 0; b < sound.requests() && lengths.ascends(); ++b) {
      std::set<std::int64_t> own;
      for (std::int64_t p = 0; p < kit.done[b]; ++p) {
        own.insert(kit.slot(b, p));
      }
      // Tokens of other requests that go astray may meet this one's rows.
      const bool met = std::ranges::any_of(spoilt_tokens, [&](std::int64_t token) {
        return own.contains(hostile_slots[at(token)]) || own.contains(step.slots[at(token)]);
      });
      if (met || !lengths.is_sound(sound, b)) {
        continue;
      }
      for (const std::int64_t slot : own) {
        const std::ptrdiff_t row = cache.row(slot) - cache.data;
        ASSERT_TRUE(std::equal(written.begin() + row, written.begin() + row + row_bytes, expected.begin() + row))
            << "request " << b << ", slot " << slot;
      }
    }
  }
}

TEST_P(HostileIndexer, SelectAndScoresWriteTheirRowsAndNothingElse) {
  for (int draw = 0; draw < hostile_draws(); ++draw) {
    SCOPED_TRACE(testing::Message() << "draw " << draw);
    Kit kit = random_kit();
    const Kit::Step step = last_step(kit);
    if (step.tokens == 0) {
      continue;
    }
    kit.append(step);
    CacheView cache = kit.cache();
    const IndexerGeometry& g = kit.indexer;
    const std::int64_t tokens = random_.chance(0.25) ? 1 + random_.below(step.tokens) : step.tokens;
    const std::int64_t longest = *std::ranges::max_element(step.seq_len);
    const std::int64_t width = g.rule().width();
    const auto count = static_cast<std::int64_t>(step.seq_len.size());
    const Guard guard = random_guard(random_);
    const GuardedInput<bfloat16> keys(view_of(kit.memory, {std::ssize(kit.memory)}), guard, kNan);
    cache.data = reinterpret_cast<const std::byte*>(keys.view().data());
    const GuardedInput<bfloat16> query(View<const bfloat16>(step.query.data(), {tokens, g.num_heads, g.head_dim}),
                                       guard, kNan);
    const GuardedInput<float> weight(View<const float>(step.weight.data(), {tokens, g.num_heads}), guard, kNan);
    const GuardedRequests requests(step.requests, guard);
    std::vector<std::int64_t> begins(at(count));
    std::ranges::generate(begins, [&] { return random_.below(longest + 1); });
    const GuardedInput<std::int64_t> scoring_begin(view_of(begins, {count}), guard, std::byte{0});
    const GuardedOutput<std::int32_t> index(2, {tokens, width, 0, 0}, {width + 3, 1, 0, 0});
    const GuardedOutput<std::int32_t> counts(1, {tokens, 0, 0, 0}, {2, 0, 0, 0});
    const std::int64_t columns = longest / g.pool + random_.below(3);
    const GuardedOutput<float> scores(2, {tokens, columns, 0, 0}, {columns + 5, 1, 0, 0});
    const std::int64_t least = cuda_select_workspace(g, 1, longest).least;
    const GuardedMemory workspace(least * (1 + random_.below(20)), Guard::wide, kNan);
    const auto run = [&] {
      index.refill();
      counts.refill();
      scores.refill();
      workspace.refill();
      headrace::select(g, cache, {query.view(), weight.view()}, requests.get(), scoring_begin.view(), longest,
                       index.view(), counts.view(), {workspace.data(), at(workspace.size_bytes())}, *gpu(), Stream{});
      score_rows(g, cache, {query.view(), weight.view()}, requests.get(), longest, scores.view(), *gpu(), Stream{});
      device::cuda::synchronize(Stream{});
    };
    const auto rows_of = [&](std::int64_t begin, std::int64_t end) {
      return std::vector<std::vector<std::byte>>{index.rows(begin, end), counts.rows(begin, end),
                                                 scores.rows(begin, end)};
    };
    run();
    const Lengths sound(step.requests);
    std::vector<std::vector<std::vector<std::byte>>> expected;
    for (std::size_t b = 0; b < at(count); ++b) {
      expected.push_back(rows_of(sound.query_start[b], std::min<std::int64_t>(tokens, sound.query_start[b + 1])));
    }

    const Lengths lengths = random_lengths(sound, step, cache.num_pages);
    std::vector<std::int64_t> hostile_begins = begins;
    if (random_.chance(0.5)) {
      hostile_begins[at(random_.below(count))] = hostile<std::int64_t>(random_, {longest, std::int64_t{1} << 32});
    }
    requests.put(lengths);
    scoring_begin.put(hostile_begins);
    run();
    ASSERT_EQ(index.damage(tokens), std::nullopt);
    ASSERT_EQ(counts.damage(tokens), std::nullopt);
    ASSERT_EQ(scores.damage(tokens), std::nullopt);
    ASSERT_EQ(workspace.damage([](std::int64_t) { return true; }), std::nullopt);
    for (std::size_t b = 0; b < at(count) && lengths.ascends(); ++b) {
      if (lengths.is_sound(sound, b) && hostile_begins[b] == begins[b] && sound.query_start[b + 1] <= tokens) {
        ASSERT_EQ(rows_of(sound.query_start[b], sound.query_start[b + 1]), expected[b]) << "request " << b;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, HostileIndexer, testing::Bool(),
                         [](const auto& kpool) { return std::string(kpool.param ? "kpool" : "lightning"); });

}  // namespace
}  // namespace headrace::test
