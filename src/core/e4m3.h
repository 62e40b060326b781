// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

namespace headrace {

/// The value of an e4m3 byte. Arithmetic costs several times a look-up, and caches and checkpoints hold 10^8 of them.
class E4m3Table {
 public:
  [[nodiscard]] static const E4m3Table& get() noexcept;
  [[nodiscard]] float operator()(std::byte code) const noexcept { return values_[std::to_integer<std::size_t>(code)]; }

 private:
  E4m3Table() noexcept;

  std::array<float, 256> values_{};
};

}  // namespace headrace
