// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <vector>

#include "guarded_memory.h"
#include "headrace/requests.h"
#include "headrace/selection.h"
#include "support/random.h"

/// Integers on the device that make no sense, for every function that reads some: what lengths, tables, selections and
/// slots may hold without harm (docs/contract.md, "Safety"). Tests put them where sound ones were, call the function in
/// guarded memory, and look at the guards and at the requests whose integers stayed as they were.
namespace headrace::test {

/// Of each test. The environment's HEADRACE_HOSTILE_DRAWS overrides it.
inline int hostile_draws() {
  const char* chosen = std::getenv("HEADRACE_HOSTILE_DRAWS");
  return chosen == nullptr ? 100 : std::atoi(chosen);
}

/// A number at an end of its type, next to 0, or next to one of `bounds` or its negative; now and then any.
template <class T>
T hostile(Random& random, std::initializer_list<std::int64_t> bounds) {
  constexpr T kLeast = std::numeric_limits<T>::min();
  constexpr T kMost = std::numeric_limits<T>::max();
  const std::int64_t near = random.below(5) - 2;
  const std::int64_t bound = bounds.begin()[random.below(static_cast<std::int64_t>(bounds.size()))];
  switch (random.below(8)) {
    case 0:
      return static_cast<T>(kLeast + random.below(3));
    case 1:
      return static_cast<T>(kMost - random.below(3));
    case 2:
      return static_cast<T>(static_cast<std::uint64_t>(kMost) - static_cast<std::uint64_t>(bound) +
                            static_cast<std::uint64_t>(near));
    case 3:
      return static_cast<T>(near);
    case 4:
      return static_cast<T>(-bound + near);
    case 5:
      return static_cast<T>(random.bits());
    default:
      return static_cast<T>(bound + near);
  }
}

/// The lengths and the block table of a step, on the host, to be spoilt.
struct Lengths {
  std::vector<std::int32_t> query_start;
  std::vector<std::int32_t> seq_len;
  std::vector<std::int32_t> block_table;  ///< gaps included
  std::int64_t table_width = 0;
  std::int64_t table_stride = 0;

  explicit Lengths(const Requests& host)
      : query_start(host.query_start.data(), host.query_start.data() + host.query_start.dim(0)),
        seq_len(host.seq_len.data(), host.seq_len.data() + host.seq_len.dim(0)),
        block_table(host.block_table.data(), host.block_table.data() + reach_of(host.block_table)),
        table_width(host.block_table.dim(1)),
        table_stride(host.block_table.stride(0)) {}

  [[nodiscard]] std::size_t requests() const noexcept { return seq_len.size(); }

  void spoil_query_start(Random& random, std::int64_t tokens) {
    switch (random.below(5)) {
      case 0: {  // all of them moved
        const auto by = hostile<std::int32_t>(random, {64, tokens});
        for (std::int32_t& start : query_start) {
          start = static_cast<std::int32_t>(static_cast<std::uint32_t>(start) + static_cast<std::uint32_t>(by));
        }
        break;
      }
      case 1:
        std::reverse(query_start.begin(), query_start.end());
        break;
      case 2:  // as many as the tensors have, or rather more
        query_start.back() = static_cast<std::int32_t>(tokens + random.below(2 * tokens + 1));
        break;
      default:
        for (std::int64_t n = 1 + random.below(2); n > 0; --n) {
          any(random, query_start) = hostile<std::int32_t>(random, {tokens, any(random, query_start)});
        }
    }
  }
  void spoil_seq_len(Random& random, std::int64_t longest) {
    for (std::int64_t n = 1 + random.below(2); n > 0; --n) {
      any(random, seq_len) = hostile<std::int32_t>(random, {longest, any(random, seq_len)});
    }
  }
  void spoil_block_table(Random& random, std::int64_t pages) {
    for (std::int64_t n = 1 + random.below(2); n > 0; --n) {
      const std::int64_t request = random.below(static_cast<std::int64_t>(requests()));
      for (std::int64_t i = 0; i < table_width; ++i) {
        if (random.chance(0.7)) {
          block_table[static_cast<std::size_t>(request * table_stride + i)] = hostile<std::int32_t>(random, {pages});
        }
      }
    }
  }

  /// Whether a request has what `sound` says, and no other request claims one of its tokens.
  [[nodiscard]] bool is_sound(const Lengths& sound, std::size_t b) const {
    const auto row = static_cast<std::ptrdiff_t>(b) * static_cast<std::ptrdiff_t>(table_stride);
    if (query_start[b] != sound.query_start[b] || query_start[b + 1] != sound.query_start[b + 1] ||
        seq_len[b] != sound.seq_len[b] ||
        !std::equal(block_table.begin() + row, block_table.begin() + row + static_cast<std::ptrdiff_t>(table_width),
                    sound.block_table.begin() + row)) {
      return false;
    }
    for (std::size_t other = 0; other < requests(); ++other) {
      if (other != b && query_start[other] < query_start[other + 1] && query_start[other] < query_start[b + 1] &&
          query_start[other + 1] > query_start[b]) {
        return false;
      }
    }
    return true;
  }
  /// Whether the requests' tokens follow each other, so that a token's request can be searched for.
  [[nodiscard]] bool ascends() const { return std::is_sorted(query_start.begin(), query_start.end()); }

 private:
  static std::int32_t& any(Random& random, std::vector<std::int32_t>& values) {
    return values[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(values.size())))];
  }
};

/// Lengths and block table on the device, in exactly their memory or between guards that look like page 0, length 0.
class GuardedRequests {
 public:
  GuardedRequests(const Requests& host, Guard guard)
      : query_start_(host.query_start, guard, std::byte{0}),
        seq_len_(host.seq_len, guard, std::byte{0}),
        block_table_(host.block_table, guard, std::byte{0}) {}

  void put(const Lengths& lengths) const {
    query_start_.put(lengths.query_start);
    seq_len_.put(lengths.seq_len);
    block_table_.put(lengths.block_table);
  }
  [[nodiscard]] Requests get() const { return {query_start_.view(), seq_len_.view(), block_table_.view()}; }

 private:
  GuardedInput<std::int32_t> query_start_;
  GuardedInput<std::int32_t> seq_len_;
  GuardedInput<std::int32_t> block_table_;
};

/// Of a test's draws half read from memory that ends where the view does.
inline Guard random_guard(Random& random) { return random.chance(0.5) ? Guard::none : Guard::wide; }

}  // namespace headrace::test
