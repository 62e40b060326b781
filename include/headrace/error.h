// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "headrace/export.h"

namespace headrace {

/// What a caller can do about an Error.
enum class ErrorKind : std::uint8_t {
  misuse,          ///< an argument, a field or a file is wrong: another one is needed
  unsupported,     ///< well formed, but not with this library, device or path: another one of these may serve
  out_of_memory,   ///< of the host or of a GPU: less at once, or later, may work
  device_failure,  ///< CUDA or a library of it reported a failure; it may be of work that was queued before
};

/// The base of every exception that the library throws of its own. It names what was wrong, what was expected and what
/// came: "block_table[3, 7]: expected a page in [0, 128), got 131". One of this very type is misuse; the other kinds
/// are the types below. Where the standard library runs out of memory, std::bad_alloc passes through.
class HEADRACE_EXPORT Error : public std::runtime_error {
 public:
  /// @param argument  the argument, field or file that is wrong, as the caller knows it
  /// @param expected  what it should have been
  /// @param actual    what it was
  Error(std::string argument, std::string expected, std::string actual);

  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  [[nodiscard]] const std::string& argument() const noexcept { return argument_; }
  [[nodiscard]] const std::string& expected() const noexcept { return expected_; }
  [[nodiscard]] const std::string& actual() const noexcept { return actual_; }

  /// Throws an error of this kind that says the same of `argument`: what the caller of the caller knows it as.
  [[noreturn]] void throw_for(std::string argument) const;

 protected:
  Error(ErrorKind kind, std::string argument, std::string expected, std::string actual);

 private:
  ErrorKind kind_ = ErrorKind::misuse;
  std::string argument_;
  std::string expected_;
  std::string actual_;
};

/// ErrorKind::unsupported: no CUDA in the library, no GPU, or one that the kernels do not run on; a forced path that
/// cannot serve the batch; dimensions for which there is no kernel.
class HEADRACE_EXPORT UnsupportedError : public Error {
 public:
  UnsupportedError(std::string argument, std::string expected, std::string actual);
};

/// ErrorKind::out_of_memory.
class HEADRACE_EXPORT OutOfMemoryError : public Error {
 public:
  OutOfMemoryError(std::string argument, std::string expected, std::string actual);
};

/// ErrorKind::device_failure.
class HEADRACE_EXPORT DeviceError : public Error {
 public:
  DeviceError(std::string argument, std::string expected, std::string actual);
};

}  // namespace headrace
