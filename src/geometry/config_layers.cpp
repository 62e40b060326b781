// SPDX-License-Identifier: Apache-2.0
#include "geometry/config_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "geometry/limits.h"

namespace headrace {
namespace {

constexpr std::string_view kPattern = "index_topk_pattern";
constexpr std::int64_t kDefaultOffset = 2;  // of transformers

// The field that decides on sharing, and what it says for each layer.
struct Sharing {
  std::string_view key;
  std::vector<bool> shares;
};

std::optional<LayerKind> kind_of(const Architecture& architecture, std::string_view type) {
  const bool sparse = architecture.indexer != Architecture::Indexer::none;
  if (sparse && type == "deepseek_sparse_attention") {
    return LayerKind::sparse_attention;
  }
  if (type == "full_attention" && !sparse) {
    return LayerKind::full_attention;
  }
  if (architecture.hybrid && type == "full_attention") {
    return LayerKind::sparse_attention;  // the older name of the hybrid's MLA layers
  }
  if (architecture.hybrid && type == "linear_attention") {
    return LayerKind::linear_attention;
  }
  return std::nullopt;
}

// Whether a layer's mode says that it shares. A pattern's list may have the letters of its string form.
bool parse_mode(const ConfigFields& fields, std::string_view key, std::size_t layer, std::string_view mode) {
  const bool letters = key == kPattern;
  const bool shares = mode == "shared" || (letters && mode == "S");
  if (!shares && mode != "full" && !(letters && mode == "F")) {
    fields.fail(fmt::format("{}[{}]", key, layer), "\"full\" or \"shared\"", fmt::format("\"{}\"", mode));
  }
  return shares;
}

std::vector<bool> parse_modes(const ConfigFields& fields, std::string_view key, std::int64_t num_layers) {
  std::vector<bool> shares;
  for (const std::string& mode : fields.strings(key, num_layers)) {
    shares.push_back(parse_mode(fields, key, shares.size(), mode));
  }
  return shares;
}

std::vector<bool> parse_pattern(const ConfigFields& fields, std::int64_t num_layers) {
  const std::string pattern = fields.string(kPattern);
  if (std::cmp_not_equal(pattern.size(), num_layers) || pattern.find_first_not_of("FS") != std::string::npos) {
    fields.fail(kPattern, fmt::format("{} letters F or S, one a layer", num_layers));
  }
  std::vector<bool> shares(pattern.size());
  std::transform(pattern.begin(), pattern.end(), shares.begin(), [](char letter) { return letter == 'S'; });
  return shares;
}

std::vector<bool> parse_schedule(const ConfigFields& fields, std::int64_t num_layers) {
  const std::int64_t freq = fields.optional_integer("index_topk_freq", 1, kMaxLayers).value_or(1);
  const std::int64_t offset = fields.optional_integer("index_skip_topk_offset", 0, kMaxLayers).value_or(kDefaultOffset);
  std::vector<bool> shares;
  for (std::int64_t i = 0; i < num_layers; ++i) {
    shares.push_back(std::max<std::int64_t>(i - offset + 1, 0) % freq != 0);
  }
  return shares;
}

Sharing parse_sharing_fields(const ConfigFields& fields, std::int64_t num_layers) {
  if (fields.has("indexer_types")) {
    return {"indexer_types", parse_modes(fields, "indexer_types", num_layers)};
  }
  if (fields.is_string(kPattern)) {
    return {kPattern, parse_pattern(fields, num_layers)};
  }
  if (fields.has(kPattern)) {
    return {kPattern, parse_modes(fields, kPattern, num_layers)};
  }
  return {"index_skip_topk_offset", parse_schedule(fields, num_layers)};
}

}  // namespace

std::vector<LayerKind> parse_layer_kinds(const Architecture& architecture, const ConfigFields& fields,
                                         std::int64_t num_layers) {
  constexpr std::string_view kKey = "layer_types";
  if (!fields.has(kKey) && !architecture.hybrid) {
    const bool sparse = architecture.indexer != Architecture::Indexer::none;
    return std::vector<LayerKind>(static_cast<std::size_t>(num_layers),
                                  sparse ? LayerKind::sparse_attention : LayerKind::full_attention);
  }
  std::vector<LayerKind> kinds;
  for (const std::string& type : fields.strings(kKey, num_layers)) {
    const std::optional<LayerKind> kind = kind_of(architecture, type);
    if (!kind) {
      fields.fail(fmt::format("{}[{}]", kKey, kinds.size()), fmt::format("a kind that {} has", architecture.model_type),
                  fmt::format("\"{}\"", type));
    }
    kinds.push_back(*kind);
  }
  return kinds;
}

std::vector<bool> parse_sharing(const Architecture& architecture, const ConfigFields& fields,
                                const std::vector<LayerKind>& kinds) {
  if (!architecture.shares_selection) {
    return std::vector<bool>(kinds.size(), false);
  }
  Sharing sharing = parse_sharing_fields(fields, static_cast<std::int64_t>(kinds.size()));
  bool have_selection = false;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] != LayerKind::sparse_attention) {
      sharing.shares[i] = false;
      continue;
    }
    if (sharing.shares[i] && !have_selection) {
      fields.fail(sharing.key, "a layer that scores before the first that shares", fmt::format("layer {} sharing", i));
    }
    have_selection = true;
  }
  return std::move(sharing.shares);
}

}  // namespace headrace
