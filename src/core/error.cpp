// SPDX-License-Identifier: Apache-2.0
#include "headrace/error.h"

#include <utility>

namespace headrace {

Error::Error(ErrorKind kind, std::string argument, std::string expected, std::string actual)
    : std::runtime_error(argument + ": expected " + expected + ", got " + actual),
      kind_(kind),
      argument_(std::move(argument)),
      expected_(std::move(expected)),
      actual_(std::move(actual)) {}

Error::Error(std::string argument, std::string expected, std::string actual)
    : Error(ErrorKind::misuse, std::move(argument), std::move(expected), std::move(actual)) {}

UnsupportedError::UnsupportedError(std::string argument, std::string expected, std::string actual)
    : Error(ErrorKind::unsupported, std::move(argument), std::move(expected), std::move(actual)) {}

OutOfMemoryError::OutOfMemoryError(std::string argument, std::string expected, std::string actual)
    : Error(ErrorKind::out_of_memory, std::move(argument), std::move(expected), std::move(actual)) {}

DeviceError::DeviceError(std::string argument, std::string expected, std::string actual)
    : Error(ErrorKind::device_failure, std::move(argument), std::move(expected), std::move(actual)) {}

void Error::throw_for(std::string argument) const {
  switch (kind_) {
    case ErrorKind::misuse:
      break;
    case ErrorKind::unsupported:
      throw UnsupportedError(std::move(argument), expected_, actual_);
    case ErrorKind::out_of_memory:
      throw OutOfMemoryError(std::move(argument), expected_, actual_);
    case ErrorKind::device_failure:
      throw DeviceError(std::move(argument), expected_, actual_);
  }
  throw Error(std::move(argument), expected_, actual_);
}

}  // namespace headrace
