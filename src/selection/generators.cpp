// SPDX-License-Identifier: Apache-2.0
#include "selection/generators.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "headrace/error.h"

namespace headrace::selection {
namespace {

/// SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014). Integers only, so a
/// seed means the same draws on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept {
    state_ += 0x9e3779b97f4a7c15U;
    return mix(state_);
  }
  /// Uniform in [0, n), 1 <= n < 2^32, without bias (Lemire: "Fast Random Integer Generation in an Interval", 2019).
  std::int64_t below(std::int64_t n) noexcept {
    const auto range = static_cast<std::uint32_t>(n);
    std::uint64_t product = (next() >> 32) * range;
    if (static_cast<std::uint32_t>(product) < range) {
      const std::uint32_t biased = (0U - range) % range;
      while (static_cast<std::uint32_t>(product) < biased) {
        product = (next() >> 32) * range;
      }
    }
    return static_cast<std::int64_t>(product >> 32);
  }
  [[nodiscard]] static std::uint64_t mix(std::uint64_t z) noexcept {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

/// A set of numbers in [0, size) that is drawn from, and read in ascending order.
class DrawnSet {
 public:
  /// @param size   numbers there are in all
  /// @param limit  numbers the set holds at most
  DrawnSet(std::int64_t size, std::int64_t limit) : bits_(static_cast<std::size_t>((size + 63) / 64)) {
    members_.reserve(static_cast<std::size_t>(std::min(size, limit)));
  }

  [[nodiscard]] std::int64_t count() const noexcept { return static_cast<std::int64_t>(members_.size()); }
  void add(std::int64_t x) {
    flip(x);
    members_.push_back(x);
  }
  void clear() noexcept {
    for (const std::int64_t x : members_) {
      flip(x);
    }
    members_.clear();
  }
  /// Drops members at random until at most `count` are left.
  void drop_to(std::int64_t count, Random& random) {
    while (this->count() > count) {
      std::swap(members_[static_cast<std::size_t>(random.below(this->count()))], members_.back());
      flip(members_.back());
      members_.pop_back();
    }
  }
  /// Adds numbers in [0, n) at random until there are `count` <= n.
  void draw_to(std::int64_t count, std::int64_t n, Random& random) {
    while (this->count() < count) {
      const std::int64_t x = random.below(n);
      if (!contains(x)) {
        add(x);
      }
    }
  }
  /// Calls body for each member below n, ascending.
  template <class Body>
  void for_each(std::int64_t n, const Body& body) const {
    for (std::int64_t word = 0; word * 64 < n; ++word) {
      for (std::uint64_t bits = bits_[static_cast<std::size_t>(word)]; bits != 0; bits &= bits - 1) {
        body(word * 64 + std::countr_zero(bits));
      }
    }
  }

 private:
  static std::uint64_t bit(std::int64_t x) noexcept { return std::uint64_t{1} << (x % 64); }
  [[nodiscard]] bool contains(std::int64_t x) const noexcept {
    return (bits_[static_cast<std::size_t>(x / 64)] & bit(x)) != 0;
  }
  void flip(std::int64_t x) noexcept { bits_[static_cast<std::size_t>(x / 64)] ^= bit(x); }

  std::vector<std::uint64_t> bits_;
  std::vector<std::int64_t> members_;
};

/// Turns the row before into the next one: `budget` of the first `available` numbers (keys or pools), of which `kept`
/// are the row before's.
void next_row(DrawnSet& set, std::int64_t available, std::int64_t budget, std::int64_t kept, Random& random) {
  if (available <= budget) {
    // Everything; the row before had everything too, or this is the first.
    for (std::int64_t x = set.count(); x < available; ++x) {
      set.add(x);
    }
    return;
  }
  if (kept == 0) {
    set.clear();  // without a draw, so that the row does not depend on the one before
  } else {
    set.drop_to(kept, random);
  }
  set.draw_to(budget, available, random);
}

void validate(const Generator& generator, std::int64_t context_len, View<std::int32_t> index,
              View<std::int32_t> count) {
  if (generator.topk < 1 || generator.topk > std::numeric_limits<std::int32_t>::max()) {
    throw Error("generator topk", "a number in [1, 2^31)", std::to_string(generator.topk));
  }
  if (!(generator.rho >= 0.0 && generator.rho <= 1.0)) {
    throw Error("generator rho", "a number in [0, 1]", fmt::format("{}", generator.rho));
  }
  if (generator.kind == Generator::Kind::pooled && (generator.pool < 1 || generator.pool > generator.topk)) {
    throw Error("generator pool", fmt::format("a number in [1, topk = {}]", generator.topk),
                std::to_string(generator.pool));
  }
  index.expect("index", {-1, -1});
  count.expect("count", {index.dim(0)});
  if (index.dim(1) < generator.width()) {
    throw Error("index", fmt::format("at least {} columns", generator.width()), std::to_string(index.dim(1)));
  }
  const std::int64_t most = std::numeric_limits<std::int32_t>::max() - index.dim(0);
  if (context_len < 0 || context_len > most) {
    throw Error("context_len", fmt::format("a number in [0, {}]", most), std::to_string(context_len));
  }
}

/// Writes ascending positions to one row and -1 behind them.
class RowWriter {
 public:
  RowWriter(View<std::int32_t> index, std::int64_t row) noexcept : index_(index), row_(row) {}
  void append(std::int64_t begin, std::int64_t end) noexcept {
    for (std::int64_t p = begin; p < end; ++p) {
      index_(row_, column_++) = static_cast<std::int32_t>(p);
    }
  }
  std::int32_t finish() noexcept {
    for (std::int64_t i = column_; i < index_.dim(1); ++i) {
      index_(row_, i) = -1;
    }
    return static_cast<std::int32_t>(column_);
  }

 private:
  View<std::int32_t> index_;
  std::int64_t row_;
  std::int64_t column_ = 0;
};

void fill_local(std::int64_t topk, std::int64_t context_len, View<std::int32_t> index, View<std::int32_t> count) {
  for (std::int64_t row = 0; row < index.dim(0); ++row) {
    const std::int64_t keys = context_len + row + 1;
    RowWriter writer(index, row);
    writer.append(std::max<std::int64_t>(0, keys - topk), keys);
    count(row) = writer.finish();
  }
}

template <class T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::int64_t Generator::width() const noexcept { return kind == Kind::pooled ? topk + pool - 1 : topk; }

void Generator::fill(std::int64_t request, std::int64_t context_len, View<std::int32_t> index,
                     View<std::int32_t> count) const {
  validate(*this, context_len, index, count);
  if (kind == Kind::local) {
    fill_local(topk, context_len, index, count);
    return;
  }
  const std::int64_t unit = kind == Kind::pooled ? pool : 1;
  const std::int64_t budget = topk / unit;
  const double share = kind == Kind::uniform ? 0.0 : rho;
  const auto kept = static_cast<std::int64_t>(std::llround(share * static_cast<double>(budget)));
  const std::uint64_t stream = Random::mix(Random::mix(seed) + static_cast<std::uint64_t>(request) + 1);
  DrawnSet set((context_len + index.dim(0)) / unit, budget);
  for (std::int64_t row = 0; row < index.dim(0); ++row) {
    const std::int64_t keys = context_len + row + 1;
    // A stream for each row: uniform rows are the same however the prompt is cut.
    Random random(Random::mix(stream + static_cast<std::uint64_t>(keys)));
    next_row(set, keys / unit, budget, kept, random);
    RowWriter writer(index, row);
    set.for_each(keys / unit, [&](std::int64_t x) { writer.append(x * unit, (x + 1) * unit); });
    writer.append(keys / unit * unit, keys);
    count(row) = writer.finish();
  }
}

Generator parse_generator(std::string_view text) {
  const auto fail = [&](const char* expected) {
    return Error("selection generator", expected, fmt::format("\"{}\"", text));
  };
  std::vector<std::string_view> parts;
  for (std::string_view rest = text;;) {
    const std::size_t colon = rest.find(':');
    parts.push_back(rest.substr(0, colon));
    if (colon == std::string_view::npos) {
      break;
    }
    rest.remove_prefix(colon + 1);
  }
  Generator generator;
  const std::string_view name = parts[0];
  if (name == "uniform" || name == "local") {
    generator.kind = name == "uniform" ? Generator::Kind::uniform : Generator::Kind::local;
    if (parts.size() != 1) {
      throw fail("\"uniform\" or \"local\" without parameters");
    }
    return generator;
  }
  if (name == "drift") {
    generator.kind = Generator::Kind::drift;
    if (parts.size() != 2) {
      throw fail("\"drift:RHO\"");
    }
  } else if (name == "pooled") {
    generator.kind = Generator::Kind::pooled;
    if (parts.size() != 3) {
      throw fail("\"pooled:P:RHO\"");
    }
    if (!parse_number(parts[1], generator.pool) || generator.pool < 1) {
      throw fail("\"pooled:P:RHO\" with a whole number P >= 1");
    }
  } else {
    throw fail("\"uniform\", \"drift:RHO\", \"pooled:P:RHO\" or \"local\"");
  }
  if (!parse_number(parts.back(), generator.rho) || !(generator.rho >= 0.0 && generator.rho <= 1.0)) {
    throw fail("RHO in [0, 1]");
  }
  return generator;
}

}  // namespace headrace::selection
