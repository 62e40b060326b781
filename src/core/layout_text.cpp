// SPDX-License-Identifier: Apache-2.0
#include "core/layout_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace headrace {

std::string layout_text(const void* address, std::int64_t divisor, std::initializer_list<std::int64_t> strides,
                        std::string_view unit) {
  const auto past = reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(divisor);
  std::string text = past == 0 ? std::string("such an address")
                               : fmt::format("an address {} byte{} past such a one", past, past == 1 ? "" : "s");
  if (strides.size() > 0) {
    text += fmt::format(", stride{} {} {}", strides.size() == 1 ? "" : "s", fmt::join(strides, " and "), unit);
  }
  return text;
}

}  // namespace headrace
