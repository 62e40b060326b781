// SPDX-License-Identifier: Apache-2.0
#include "headrace/view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "headrace/error.h"

namespace headrace {

void expect_shape(std::string_view name, const Dims& shape, int rank, std::initializer_list<std::int64_t> expected) {
  bool matches = rank == static_cast<int>(expected.size());
  std::vector<std::string> want;
  std::size_t axis = 0;
  for (const std::int64_t n : expected) {
    matches = matches && (n < 0 || shape[axis] == n);
    want.push_back(n < 0 ? "any" : std::to_string(n));
    ++axis;
  }
  if (!matches) {
    const std::vector<std::int64_t> have(shape.begin(), shape.begin() + rank);
    throw Error(std::string(name), fmt::format("shape [{}]", fmt::join(want, ", ")),
                fmt::format("[{}]", fmt::join(have, ", ")));
  }
}

void expect_dtype(std::string_view name, DType expected, DType actual) {
  if (expected != actual) {
    throw Error(std::string(name), std::string(name_of(expected)), std::string(name_of(actual)));
  }
}

}  // namespace headrace
