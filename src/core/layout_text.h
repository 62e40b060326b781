// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace headrace {

/// What an error about alignment says came: "an address 8 bytes past such a one, strides 24 and 96 elements". Addresses
/// themselves differ from run to run and say less.
/// @param divisor  bytes that the address should be divisible by
[[nodiscard]] std::string layout_text(const void* address, std::int64_t divisor,
                                      std::initializer_list<std::int64_t> strides = {},
                                      std::string_view unit = "bytes");

}  // namespace headrace
