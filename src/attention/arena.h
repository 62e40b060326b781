// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace headrace::attention {

/// What stands for every size that is too large to be counted. Sizes of a bound's largest batches are products of up to
/// 2^31 rows and as many keys: they must come out as too much, not as little.
inline constexpr std::int64_t kTooMuch = std::numeric_limits<std::int64_t>::max();

/// The product of sizes >= 0, at most kTooMuch.
template <class... Sizes>
[[nodiscard]] constexpr std::int64_t size_product(std::int64_t first, Sizes... others) noexcept {
  std::int64_t product = first;
  ((product = __builtin_mul_overflow(product, static_cast<std::int64_t>(others), &product) ? kTooMuch : product), ...);
  return product;
}
/// The sum of sizes >= 0, at most kTooMuch.
[[nodiscard]] constexpr std::int64_t size_sum(std::int64_t a, std::int64_t b) noexcept {
  return a > kTooMuch - b ? kTooMuch : a + b;
}

/// Hands out 64-byte aligned pieces of a workspace, one after the other. Without memory it only counts, so that the
/// same code that lays a workspace out also says how large it must be.
class Arena {
 public:
  Arena() = default;
  explicit Arena(std::span<std::byte> memory) noexcept : memory_(memory) {}

  template <class T>
  [[nodiscard]] std::span<T> take(std::int64_t count) noexcept {
    const std::int64_t begin = used_;
    const std::int64_t bytes = size_sum(size_product(count, sizeof(T)), kAlignment - 1);
    used_ = bytes == kTooMuch ? kTooMuch : size_sum(used_, bytes / kAlignment * kAlignment);
    if (memory_.empty()) {
      return {};
    }
    return {reinterpret_cast<T*>(memory_.data() + begin), static_cast<std::size_t>(count)};
  }
  /// kTooMuch where that cannot be counted.
  [[nodiscard]] std::int64_t used() const noexcept { return used_; }

  static constexpr std::int64_t kAlignment = 64;

 private:
  std::span<std::byte> memory_;
  std::int64_t used_ = 0;
};

}  // namespace headrace::attention
