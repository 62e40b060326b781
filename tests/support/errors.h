// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "headrace/error.h"

namespace headrace::test {

/// Succeeds when `call` throws an Error whose message contains `part`.
template <class Call>
[[nodiscard]] ::testing::AssertionResult throws_error(Call&& call, const std::string& part) {
  try {
    call();
  } catch (const Error& error) {
    if (std::string(error.what()).find(part) != std::string::npos) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << "the error \"" << error.what() << "\" does not contain \"" << part << "\"";
  } catch (const std::exception& error) {
    return ::testing::AssertionFailure() << "another exception: " << error.what();
  }
  return ::testing::AssertionFailure() << "no error; expected one with \"" << part << "\"";
}

}  // namespace headrace::test
