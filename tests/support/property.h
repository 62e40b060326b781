// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>

namespace headrace::test {

/// Cases a property is tried with: HEADRACE_PROPERTY_CASES, or 2000.
inline int property_cases() {
  const char* chosen = std::getenv("HEADRACE_PROPERTY_CASES");
  return chosen != nullptr ? std::atoi(chosen) : 2000;
}

/// Tries a property with `cases` cases and fails the running test with the shrunk counterexample. Prints the seed
/// first; RC_PARAMS="seed=N" repeats a run.
template <class Property>
void check_property(int cases, Property&& property) {
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  params.maxSuccess = cases;
  rc::detail::TestMetadata metadata;
  metadata.id = std::string(test->test_suite_name()) + "." + test->name();
  metadata.description = metadata.id;
  std::cout << metadata.id << ": " << cases << " cases, seed " << params.seed << std::endl;
  const auto result = rc::detail::checkTestable(std::forward<Property>(property), metadata, params);
  if (!result.template is<rc::detail::SuccessResult>()) {
    std::ostringstream text;
    rc::detail::printResultMessage(result, text);
    ADD_FAILURE() << "seed " << params.seed << "\n" << text.str();
  }
}

}  // namespace headrace::test
