// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "geometry/config_reader.h"

namespace headrace {

/// Whether the field is there with a value that changes what a layer computes, for whom it means anything: a null, an
/// index_topk_freq of 1 and indexer_types that are all "full" do not.
[[nodiscard]] bool says_something(const ConfigFields& fields, std::string_view key);

/// Notes the fields that decide what another architecture computes and that this one does not read.
/// @param except_indexer  not those of an indexer, of which the reader has been told already
void note_ignored_fields(const ConfigReader& reader, bool except_indexer);

/// Notes fields of the language model that lie where they are not read: beside `text_config`, or in one that the
/// architecture does not have.
/// @param document  the whole configuration
void note_misplaced_fields(const ConfigReader& reader, const ConfigFields& document);

}  // namespace headrace
