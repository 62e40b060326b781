// SPDX-License-Identifier: Apache-2.0
#include "headrace/version.h"

#define HEADRACE_TEXT_OF(number) #number
#define HEADRACE_DOTTED(major, minor, patch) \
  HEADRACE_TEXT_OF(major) "." HEADRACE_TEXT_OF(minor) "." HEADRACE_TEXT_OF(patch)

namespace headrace {

std::string_view version() noexcept {
  return HEADRACE_DOTTED(HEADRACE_VERSION_MAJOR, HEADRACE_VERSION_MINOR, HEADRACE_VERSION_PATCH);
}

}  // namespace headrace
