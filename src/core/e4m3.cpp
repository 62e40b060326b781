// SPDX-License-Identifier: Apache-2.0
#include "core/e4m3.h"

#include <bit>
#include <cstdint>

#include "headrace/dtype.h"

namespace headrace {

E4m3Table::E4m3Table() noexcept {
  for (std::size_t code = 0; code < values_.size(); ++code) {
    values_[code] = static_cast<float>(std::bit_cast<float8_e4m3>(static_cast<std::uint8_t>(code)));
  }
}

const E4m3Table& E4m3Table::get() noexcept {
  static const E4m3Table table;
  return table;
}

}  // namespace headrace
