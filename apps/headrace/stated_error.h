// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "headrace/error.h"

namespace headrace::app {

/// An Error that people read as a sentence of its own, "WHAT: statement", rather than as "WHAT: expected ..., got ...".
class StatedError : public Error {
 public:
  StatedError(const std::string& argument, const std::string& expected, const std::string& actual,
              const std::string& statement)
      : Error(argument, expected, actual), text_(argument + ": " + statement) {}

  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

/// What was asked for cannot run here: exit status 1, where every other Error is 2.
class CannotRunError : public StatedError {
 public:
  using StatedError::StatedError;
};

/// A forced path that cannot serve the step.
class ForcedPathError : public CannotRunError {
 public:
  using CannotRunError::CannotRunError;
};

}  // namespace headrace::app
