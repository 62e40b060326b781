// SPDX-License-Identifier: Apache-2.0
#include "headrace/error.h"

#include <utility>

namespace headrace {

Error::Error(std::string argument, std::string expected, std::string actual)
    : std::runtime_error(argument + ": expected " + expected + ", got " + actual),
      argument_(std::move(argument)),
      expected_(std::move(expected)),
      actual_(std::move(actual)) {}

}  // namespace headrace
