// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include "headrace/export.h"

namespace headrace {

/// The one exception type of the library. It names what was wrong, what was expected and what came:
/// "block_table[3, 7]: expected a page in [0, 128), got 131".
class HEADRACE_EXPORT Error : public std::runtime_error {
 public:
  /// @param argument  the argument, field or file that is wrong, as the caller knows it
  /// @param expected  what it should have been
  /// @param actual    what it was
  Error(std::string argument, std::string expected, std::string actual);

  [[nodiscard]] const std::string& argument() const noexcept { return argument_; }
  [[nodiscard]] const std::string& expected() const noexcept { return expected_; }
  [[nodiscard]] const std::string& actual() const noexcept { return actual_; }

 private:
  std::string argument_;
  std::string expected_;
  std::string actual_;
};

}  // namespace headrace
