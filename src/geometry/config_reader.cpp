// SPDX-License-Identifier: Apache-2.0
#include "geometry/config_reader.h"

#include <fmt/format.h>

#include <utility>

namespace headrace {

void ConfigReader::note(const ConfigFields& object, std::string_view key, std::string found, std::string chosen) const {
  notes.push_back({object.path_of(key), std::move(found), std::move(chosen)});
}

void ConfigReader::note_difference(const ConfigFields& object, std::string_view key, std::string_view engines,
                                   std::string_view transformers) const {
  note(object, key, fmt::format("{}. Engines: {}. Transformers: {}", object.shown(key), engines, transformers),
       as_engines() ? "read as engines do" : "read as transformers does");
}

}  // namespace headrace
