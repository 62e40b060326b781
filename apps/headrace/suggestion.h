// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace::app {

/// The name that `text` was probably meant to be, capitals, hyphens, dots and the like aside: the same, one that begins
/// with the text or that the text begins with, or one that is a typing error or two away (a letter too many, too few,
/// another, or two exchanged). Empty where none is near.
[[nodiscard]] std::string nearest_name(std::string_view text, const std::vector<std::string>& names);

/// The same for a message: ` (did you mean "route"?)`, or nothing.
[[nodiscard]] std::string did_you_mean(std::string_view text, const std::vector<std::string>& names);

}  // namespace headrace::app
