// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace headrace {

/// A file of models/, embedded when the library is built.
struct EmbeddedPreset {
  std::string_view name;  ///< the file's name without .json
  std::string_view json;
};

/// In no particular order.
[[nodiscard]] std::span<const EmbeddedPreset> embedded_presets() noexcept;

}  // namespace headrace
