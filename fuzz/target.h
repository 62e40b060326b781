// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "headrace/error.h"

/// What every target defines: libFuzzer calls it with inputs it makes up, replay.cpp with the files of a corpus.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);  // NOLINT(*-naming): libFuzzer's

namespace headrace::fuzz {

/// Thrown for behaviour that is wrong without being a crash. Nothing catches it below libFuzzer, which then keeps the
/// input, as it does for any exception but headrace::Error.
class Finding : public std::logic_error {
  using std::logic_error::logic_error;
};

inline void require(bool condition, const std::string& what) {
  if (!condition) {
    throw Finding(what);
  }
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Whether `work` ends without an Error. An Error has to name the argument, what was expected and what came.
template <class Work>
bool completes(const Work& work) {
  try {
    work();
    return true;
  } catch (const Error& error) {
    require(!std::string_view(error.what()).empty(), "an Error without a message");
    require(!error.argument().empty() && !error.expected().empty() && !error.actual().empty(),
            "an Error that leaves something out: " + std::string(error.what()));
    return false;
  }
}

}  // namespace headrace::fuzz
