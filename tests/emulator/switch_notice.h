// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace headrace::emulator {

/// Tells AddressSanitizer, where it is in the program, that execution goes on on another stack. One for each stack.
class SwitchNotice {
 public:
#if defined(__SANITIZE_ADDRESS__)
  void leave_for(const void* stack, std::size_t bytes) { __sanitizer_start_switch_fiber(&own_, stack, bytes); }
  /// To the stack that this one was reached from.
  void go_back() { leave_for(from_, from_bytes_); }
  /// First thing on the stack that was switched to.
  void arrived() { __sanitizer_finish_switch_fiber(own_, &from_, &from_bytes_); }

 private:
  void* own_ = nullptr;
  const void* from_ = nullptr;
  std::size_t from_bytes_ = 0;
#else
  void leave_for(const void* /*stack*/, std::size_t /*bytes*/) {}
  void go_back() {}
  void arrived() {}
#endif
};

}  // namespace headrace::emulator
