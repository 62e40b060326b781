// SPDX-License-Identifier: Apache-2.0
#include "geometry/config_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "geometry/ignored_fields.h"
#include "geometry/limits.h"

namespace headrace {
namespace {

constexpr std::string_view kLayerTypes = "layer_types";
constexpr std::string_view kTypes = "indexer_types";
constexpr std::string_view kPattern = "index_topk_pattern";
constexpr std::string_view kFreq = "index_topk_freq";
constexpr std::string_view kOffset = "index_skip_topk_offset";
constexpr std::int64_t kDefaultOffset = 2;  // of transformers, vLLM and SGLang
constexpr std::size_t kHybridPeriod = 4;    // every fourth layer of a hybrid attends where nothing says which

// A field that decides on sharing, and what it says for each layer.
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
  const std::int64_t freq = fields.integer(kFreq, 1, kMaxLayers);
  const std::int64_t offset = fields.optional_integer(kOffset, 0, kMaxLayers).value_or(kDefaultOffset);
  std::vector<bool> shares;
  for (std::int64_t i = 0; i < num_layers; ++i) {
    shares.push_back(std::max<std::int64_t>(i - offset + 1, 0) % freq != 0);
  }
  return shares;
}

// Everything that is said on sharing, about the layers that select. A null schedule counts where nothing else decides.
std::vector<Sharing> parse_sharing_fields(const ConfigFields& fields, const std::vector<LayerKind>& kinds) {
  const auto num_layers = static_cast<std::int64_t>(kinds.size());
  std::vector<Sharing> said;
  if (fields.has(kTypes)) {
    said.push_back({kTypes, parse_modes(fields, kTypes, num_layers)});
  }
  if (fields.has(kPattern)) {
    said.push_back({kPattern, fields.is_string(kPattern) ? parse_pattern(fields, num_layers)
                                                         : parse_modes(fields, kPattern, num_layers)});
  }
  static_cast<void>(fields.optional_integer(kOffset, 0, kMaxLayers));
  if (fields.has(kFreq) || (fields.present(kFreq) && said.empty())) {
    said.push_back({kFreq, parse_schedule(fields, num_layers)});
  }
  for (Sharing& sharing : said) {
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      sharing.shares[i] = sharing.shares[i] && kinds[i] == LayerKind::sparse_attention;
    }
  }
  return said;
}

void require_agreement(const ConfigFields& fields, const std::vector<Sharing>& said) {
  for (const Sharing& other : said) {
    const Sharing& first = said.front();
    const auto [a, b] = std::mismatch(first.shares.begin(), first.shares.end(), other.shares.begin());
    if (a != first.shares.end()) {
      fields.fail(
          other.key,
          fmt::format("what {} says: layer {} {}", first.key, a - first.shares.begin(), *a ? "shares" : "scores"),
          fmt::format("{}, by which it {}", fields.shown(other.key), *b ? "shares" : "scores"));
    }
  }
}

void require_a_source(const ConfigFields& fields, const Sharing& sharing, const std::vector<LayerKind>& kinds) {
  const auto first = std::find(kinds.begin(), kinds.end(), LayerKind::sparse_attention);
  if (first != kinds.end() && sharing.shares[static_cast<std::size_t>(first - kinds.begin())]) {
    fields.fail(sharing.key == kFreq && fields.present(kOffset) ? kOffset : sharing.key,
                "a layer that scores before the first that shares",
                fmt::format("layer {} sharing", first - kinds.begin()));
  }
}

// Transformers does not read the fields for this architecture.
std::vector<bool> ignore_sharing(const ConfigReader& reader, const std::vector<LayerKind>& kinds) {
  for (const std::string_view key : {kTypes, kPattern, kFreq}) {
    if (says_something(reader.fields, key)) {
      reader.note_difference(key, "layers share selections by it", "every layer scores");
    }
  }
  return std::vector<bool>(kinds.size(), false);
}

std::vector<LayerKind> by_kda_layers(const ConfigFields& linear, std::int64_t num_layers) {
  std::vector<LayerKind> kinds(static_cast<std::size_t>(num_layers), LayerKind::sparse_attention);
  for (const std::int64_t layer : linear.layer_numbers("kda_layers", num_layers)) {
    kinds[static_cast<std::size_t>(layer)] = LayerKind::linear_attention;
  }
  return kinds;
}

std::vector<LayerKind> by_layer_types(const Architecture& architecture, const ConfigFields& fields,
                                      std::int64_t num_layers) {
  std::vector<LayerKind> kinds;
  for (const std::string& type : fields.strings(kLayerTypes, num_layers)) {
    const std::optional<LayerKind> kind = kind_of(architecture, type);
    if (!kind) {
      fields.fail(fmt::format("{}[{}]", kLayerTypes, kinds.size()),
                  fmt::format("a kind that {} has", architecture.model_type), fmt::format("\"{}\"", type));
    }
    kinds.push_back(*kind);
  }
  return kinds;
}

std::vector<LayerKind> every_fourth(std::int64_t num_layers) {
  std::vector<LayerKind> kinds;
  for (std::size_t i = 0; i < static_cast<std::size_t>(num_layers); ++i) {
    kinds.push_back(i % kHybridPeriod == kHybridPeriod - 1 ? LayerKind::sparse_attention : LayerKind::linear_attention);
  }
  return kinds;
}

// Transformers knows layer_types, vLLM linear_attn_config.kda_layers.
std::vector<LayerKind> parse_hybrid_kinds(const ConfigReader& reader, std::int64_t num_layers) {
  const ConfigFields& fields = reader.fields;
  const std::optional<ConfigFields> linear = fields.optional_object("linear_attn_config");
  const std::optional<std::vector<LayerKind>> kda =
      linear && linear->has("kda_layers") ? std::optional(by_kda_layers(*linear, num_layers)) : std::nullopt;
  if (fields.has(kLayerTypes)) {
    std::vector<LayerKind> kinds = by_layer_types(reader.architecture, fields, num_layers);
    if (kda && *kda != kinds) {
      linear->fail("kda_layers", "the layers of linear attention that layer_types tells", "others");
    }
    return kinds;
  }
  std::vector<LayerKind> kinds = every_fourth(num_layers);
  if (kda && *kda != kinds) {
    reader.note_difference(*linear, "kda_layers", "these are linear attention", "every fourth layer is none");
    return reader.as_engines() ? *kda : kinds;
  }
  if (!kda) {
    reader.note(kLayerTypes, "nothing",
                "every fourth layer is taken for sparse attention, as transformers fills it in");
  }
  return kinds;
}

}  // namespace

std::vector<LayerKind> parse_layer_kinds(const ConfigReader& reader, std::int64_t num_layers) {
  if (reader.architecture.hybrid) {
    return parse_hybrid_kinds(reader, num_layers);
  }
  if (reader.fields.has(kLayerTypes)) {
    return by_layer_types(reader.architecture, reader.fields, num_layers);
  }
  const bool sparse = reader.architecture.indexer != Architecture::Indexer::none;
  return std::vector<LayerKind>(static_cast<std::size_t>(num_layers),
                                sparse ? LayerKind::sparse_attention : LayerKind::full_attention);
}

std::vector<bool> parse_sharing(const ConfigReader& reader, const std::vector<LayerKind>& kinds) {
  const ConfigFields& fields = reader.fields;
  if (reader.architecture.indexer == Architecture::Indexer::none) {
    return std::vector<bool>(kinds.size(), false);
  }
  const bool differ = !reader.architecture.transformers_shares_selection;
  if (differ && !reader.as_engines()) {
    return ignore_sharing(reader, kinds);
  }
  std::vector<Sharing> said = parse_sharing_fields(fields, kinds);
  if (said.empty()) {
    return std::vector<bool>(kinds.size(), false);
  }
  require_agreement(fields, said);
  Sharing& sharing = said.front();
  require_a_source(fields, sharing, kinds);
  const bool any = std::find(sharing.shares.begin(), sharing.shares.end(), true) != sharing.shares.end();
  if (any && differ) {
    reader.note_difference(sharing.key, "layers share selections by it", "every layer scores");
  }
  if (any && fields.is("use_index_cache", false)) {
    reader.note("use_index_cache", fmt::format("false, beside {}", sharing.key),
                "layers share all the same: vLLM's documentation asks for true, but what selects does not read it");
  }
  return std::move(sharing.shares);
}

}  // namespace headrace
