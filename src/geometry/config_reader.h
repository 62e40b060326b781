// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "geometry/architecture.h"
#include "geometry/config_fields.h"
#include "headrace/model.h"

namespace headrace {

/// A configuration that is being read: what the architecture is, where its fields lie, whose reading counts, and what a
/// user should know of it so far.
struct ConfigReader {
  const Architecture& architecture;
  const ConfigFields& fields;
  Reading reading;
  std::vector<ConfigNote>& notes;

  [[nodiscard]] bool as_engines() const { return reading == Reading::engines; }

  /// Notes a field of `object`.
  void note(const ConfigFields& object, std::string_view key, std::string found, std::string chosen) const;
  void note(std::string_view key, std::string found, std::string chosen) const {
    note(fields, key, std::move(found), std::move(chosen));
  }
  /// Notes a field of `object` that the two readings take otherwise; what either makes of it.
  void note_difference(const ConfigFields& object, std::string_view key, std::string_view engines,
                       std::string_view transformers) const;
  void note_difference(std::string_view key, std::string_view engines, std::string_view transformers) const {
    note_difference(fields, key, engines, transformers);
  }
};

}  // namespace headrace
