// SPDX-License-Identifier: Apache-2.0
#include "capi/errors.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace headrace::capi {
namespace {

std::int32_t number_of(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::misuse:
      return HR_MISUSE;
    case ErrorKind::unsupported:
      return HR_UNSUPPORTED;
    case ErrorKind::out_of_memory:
      return HR_OUT_OF_MEMORY;
    case ErrorKind::device_failure:
      return HR_DEVICE_FAILURE;
  }
  return HR_INTERNAL;
}

/// One allocation holds the error and its texts, so that there is one place where it can fail.
HrError* make(std::int32_t kind, std::string_view argument, std::string_view expected, std::string_view actual,
              std::string_view message) noexcept {
  const std::size_t bytes = sizeof(HrError) + argument.size() + expected.size() + actual.size() + message.size() + 4;
  void* const memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) {
    return no_memory();
  }
  auto* const error = new (memory) HrError{.kind = kind};
  char* text = static_cast<char*>(memory) + sizeof(HrError);
  const auto put = [&text](std::string_view from) {
    const char* const begin = text;
    text = std::copy(from.begin(), from.end(), text);
    *text++ = '\0';
    return begin;
  };
  error->argument = put(argument);
  error->expected = put(expected);
  error->actual = put(actual);
  error->message = put(message);
  return error;
}

}  // namespace

HrError* no_memory() noexcept {
  static constinit HrError error{.kind = HR_OUT_OF_MEMORY,
                                 .argument = "memory",
                                 .expected = "enough for the call",
                                 .actual = "an allocation that failed",
                                 .message = "memory: expected enough for the call, got an allocation that failed"};
  return &error;
}

HrError* make_error(const Error& error) noexcept {
  return make(number_of(error.kind()), error.argument(), error.expected(), error.actual(), error.what());
}

HrError* make_error(const std::exception& error) noexcept {
  return make(HR_INTERNAL, "headrace", "no internal failure", error.what(), error.what());
}

}  // namespace headrace::capi

int32_t hr_error_kind(const HrError* error) { return error->kind; }
const char* hr_error_argument(const HrError* error) { return error->argument; }
const char* hr_error_expected(const HrError* error) { return error->expected; }
const char* hr_error_actual(const HrError* error) { return error->actual; }
const char* hr_error_message(const HrError* error) { return error->message; }

void hr_error_free(HrError* error) {
  if (error != headrace::capi::no_memory()) {
    operator delete(error);
  }
}
