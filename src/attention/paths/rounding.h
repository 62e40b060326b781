// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Sizes in whole tiles.
namespace headrace::attention {

[[nodiscard]] constexpr std::int64_t divide_up(std::int64_t n, std::int64_t by) noexcept { return (n + by - 1) / by; }
[[nodiscard]] constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) noexcept {
  return divide_up(n, step) * step;
}
[[nodiscard]] constexpr std::int64_t round_down(std::int64_t n, std::int64_t step) noexcept { return n / step * step; }

}  // namespace headrace::attention
