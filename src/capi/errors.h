// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <new>

#include "headrace/c_api.h"
#include "headrace/error.h"

/// What an error handle points to: texts in the same piece of memory behind it.
struct HrError {
  std::int32_t kind = HR_INTERNAL;
  const char* argument = "";
  const char* expected = "";
  const char* actual = "";
  const char* message = "";
};

namespace headrace::capi {

/// The handle for an error. Where there is no memory for one, that is the error.
[[nodiscard]] HrError* make_error(const Error& error) noexcept;
/// For an exception that the library did not foresee.
[[nodiscard]] HrError* make_error(const std::exception& error) noexcept;
/// No memory: one error that always exists, which freeing leaves alone.
[[nodiscard]] HrError* no_memory() noexcept;

/// Runs the body of a function of the C interface: no exception leaves it.
template <class Body>
[[nodiscard]] HrError* guarded(const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const Error& error) {
    return make_error(error);
  } catch (const std::bad_alloc&) {
    return no_memory();
  } catch (const std::exception& error) {
    return make_error(error);
  }
}

}  // namespace headrace::capi
