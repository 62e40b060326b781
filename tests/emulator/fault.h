// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace headrace::emulator {

/// A kernel did what no kernel may do: its launch ends with this.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace headrace::emulator
