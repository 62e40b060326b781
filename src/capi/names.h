// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "headrace/cache.h"
#include "headrace/dtype.h"
#include "headrace/plan.h"
#include "headrace/selection.h"

/// The numbers of the C interface and what they name.
namespace headrace::capi {

// @throws Error naming `argument` for a number that names nothing
[[nodiscard]] DType dtype_of(const std::string& argument, std::int32_t number);
[[nodiscard]] CacheFormat format_of(const std::string& argument, std::int32_t number);
[[nodiscard]] SelectionRule::Kind rule_of(const std::string& argument, std::int32_t number);
[[nodiscard]] SelectionSpace space_of(const std::string& argument, std::int32_t number);
[[nodiscard]] Path path_of(const std::string& argument, std::int32_t number);

[[nodiscard]] std::int32_t number_of(Path path) noexcept;
[[nodiscard]] std::int32_t number_of(DType dtype) noexcept;

}  // namespace headrace::capi
