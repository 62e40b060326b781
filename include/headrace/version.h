// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "headrace/export.h"

/// Semantic version of these headers. The build reads it from here.
#define HEADRACE_VERSION_MAJOR 0
#define HEADRACE_VERSION_MINOR 1
#define HEADRACE_VERSION_PATCH 0

namespace headrace {

/// "MAJOR.MINOR.PATCH" of the library that is linked, which a shared one may be newer than the headers.
[[nodiscard]] HEADRACE_EXPORT std::string_view version() noexcept;

}  // namespace headrace
