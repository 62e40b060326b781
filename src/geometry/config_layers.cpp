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
constexpr std::string_view kUnknownWords = "every layer scores, for in a list only the letter S shares";
constexpr std::string_view kUnknownLetters = "every layer scores, for in a list only the word shared does";
constexpr std::int64_t kDefaultOffset = 2;  // of transformers, vLLM and SGLang
constexpr std::size_t kHybridPeriod = 4;    // every fourth layer of a hybrid attends where nothing says which

// A field that decides on sharing, and what it says for each layer: to the reading that counts, and to each.
struct Sharing {
  std::string_view key;
  std::vector<bool> shares;
  std::vector<bool> to_engines = {};  // empty: all read it alike
  std::vector<bool> to_transformers = {};
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

// Files list the layers of multi-token prediction behind the model's own, which nobody asks of here.
void note_entries_beyond(const ConfigReader& reader, std::string_view key, std::int64_t num_layers) {
  if (const std::size_t length = reader.fields.length(key); std::cmp_greater(length, num_layers)) {
    reader.note(key, fmt::format("{} entries, where num_hidden_layers is {}", length, num_layers),
                fmt::format("the first {} are taken", num_layers));
  }
}

std::vector<bool> which_are(const std::vector<std::string>& modes, std::string_view mode) {
  std::vector<bool> are(modes.size());
  std::transform(modes.begin(), modes.end(), are.begin(), [&](const std::string& one) { return one == mode; });
  return are;
}

Sharing parse_types(const ConfigReader& reader, std::int64_t num_layers) {
  const std::vector<std::string> modes = reader.fields.strings(kTypes, num_layers);
  for (std::size_t i = 0; i < modes.size(); ++i) {
    if (modes[i] != "full" && modes[i] != "shared") {
      reader.fields.fail(fmt::format("{}[{}]", kTypes, i), "\"full\" or \"shared\"", fmt::format("\"{}\"", modes[i]));
    }
  }
  return {kTypes, which_are(modes, "shared")};
}

Sharing parse_letters(const ConfigReader& reader, std::int64_t num_layers) {
  const std::string pattern = reader.fields.string(kPattern);
  if (std::cmp_less(pattern.size(), num_layers) || pattern.find_first_not_of("FS") != std::string::npos) {
    reader.fields.fail(kPattern, fmt::format("{} letters F or S, one a layer", num_layers));
  }
  std::vector<bool> shares(static_cast<std::size_t>(num_layers));
  std::transform(shares.begin(), shares.end(), pattern.begin(), shares.begin(),
                 [](bool /*unset*/, char letter) { return letter == 'S'; });
  return {kPattern, std::move(shares)};
}

// In a list vLLM looks for the letter "S" and transformers for the word "shared"; what is anything else scores.
Sharing parse_pattern_list(const ConfigReader& reader, std::int64_t num_layers) {
  const std::vector<std::string> modes = reader.fields.strings(kPattern, num_layers);
  for (std::size_t i = 0; i < modes.size(); ++i) {
    if (modes[i] != "F" && modes[i] != "S" && modes[i] != "full" && modes[i] != "shared") {
      reader.fields.fail(fmt::format("{}[{}]", kPattern, i), "\"F\" or \"S\", or \"full\" or \"shared\"",
                         fmt::format("\"{}\"", modes[i]));
    }
  }
  std::vector<bool> letters = which_are(modes, "S");
  std::vector<bool> words = which_are(modes, "shared");
  return {kPattern, reader.as_engines() ? letters : words, letters, words};
}

Sharing parse_pattern(const ConfigReader& reader, std::int64_t num_layers) {
  return reader.fields.is_string(kPattern) ? parse_letters(reader, num_layers) : parse_pattern_list(reader, num_layers);
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

void require_no_null(const ConfigFields& fields, std::string_view key) {
  if (fields.is_null(key)) {
    fields.fail(key, "an integer or no such field: vLLM and transformers cannot compute with null");
  }
}

void keep_sparse(std::vector<bool>& shares, const std::vector<LayerKind>& kinds) {
  for (std::size_t i = 0; i < shares.size(); ++i) {
    shares[i] = shares[i] && kinds[i] == LayerKind::sparse_attention;
  }
}

bool any_of(const std::vector<bool>& shares) { return std::find(shares.begin(), shares.end(), true) != shares.end(); }

// Everything that is said on sharing, about the layers that select. Null types and a null pattern count as absent.
// Nulls of the schedule are wrong where it decides: vLLM and transformers compute with them, and fail. Else nobody
// reads them.
std::vector<Sharing> parse_sharing_fields(const ConfigReader& reader, const std::vector<LayerKind>& kinds) {
  const ConfigFields& fields = reader.fields;
  const auto num_layers = static_cast<std::int64_t>(kinds.size());
  std::vector<Sharing> said;
  if (fields.has(kTypes)) {
    said.push_back(parse_types(reader, num_layers));
  }
  if (fields.has(kPattern)) {
    said.push_back(parse_pattern(reader, num_layers));
  }
  if (said.empty() || !(fields.is_null(kFreq) || fields.is_null(kOffset))) {
    require_no_null(fields, kFreq);
    require_no_null(fields, kOffset);
    static_cast<void>(fields.optional_integer(kOffset, 0, kMaxLayers));
    if (fields.has(kFreq)) {
      said.push_back({kFreq, parse_schedule(fields, num_layers)});
    }
  }
  for (Sharing& sharing : said) {
    for (std::vector<bool>* shares : {&sharing.shares, &sharing.to_engines, &sharing.to_transformers}) {
      keep_sparse(*shares, kinds);
    }
    note_entries_beyond(reader, sharing.key, num_layers);
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

void note_words(const ConfigReader& reader) {
  reader.note(kPattern, reader.fields.shown(kPattern) + " of words",
              "every layer scores: engines know letters, and transformers does not read it");
}

// SGLang 0.5.23 goes by indexer_types. vLLM looks for the pattern and the schedule only, and transformers' class,
// through which it reads, makes no pattern of the types.
void note_types_alone(const ConfigReader& reader) {
  const std::string found = fmt::format("{}, beside no {} or {}", reader.fields.shown(kTypes), kPattern, kFreq);
  if (!reader.architecture.transformers_shares_selection) {
    reader.note(kTypes, found,
                fmt::format("{}. {}: there every layer scores",
                            reader.as_engines() ? "layers share selections by it, as in SGLang"
                                                : "ignored, where SGLang shares selections by it",
                            "vLLM and transformers do not read it"));
  } else if (reader.as_engines()) {
    reader.note(
        kTypes, found,
        "layers share selections by it, as in SGLang and transformers. vLLM does not read it: there every layer "
        "scores");
  }
}

// Tells where the two readings, or a reading and the author of a list, are of two minds on what this field says.
void note_who_shares(const ConfigReader& reader, const Sharing& sharing) {
  const bool read_by_transformers = reader.architecture.transformers_shares_selection;
  const bool list = !sharing.to_engines.empty();
  const bool engines = any_of(list ? sharing.to_engines : sharing.shares);
  const bool transformers = read_by_transformers && any_of(list ? sharing.to_transformers : sharing.shares);
  const bool words = list && any_of(sharing.to_transformers);
  const bool same = !list || sharing.to_engines == sharing.to_transformers;
  if (words && !engines && !transformers) {
    note_words(reader);
  } else if (engines && transformers && !same) {
    reader.note_difference(sharing.key, "layers with the letter S share", "layers with the word shared do");
  } else if (engines != transformers) {
    reader.note_difference(sharing.key, engines ? "layers share selections by it" : kUnknownWords,
                           transformers           ? "layers share selections by it"
                           : read_by_transformers ? kUnknownLetters
                                                  : "every layer scores");
  }
}

// Transformers does not read the fields for this architecture.
std::vector<bool> ignore_sharing(const ConfigReader& reader, const std::vector<LayerKind>& kinds) {
  for (const std::string_view key : {kTypes, kPattern, kFreq}) {
    if (!says_something(reader.fields, key)) {
      continue;
    }
    if (key == kTypes) {
      if (!reader.fields.has(kPattern) && !reader.fields.has(kFreq)) {
        note_types_alone(reader);
      }
      continue;  // else vLLM shares by the other
    }
    if (key == kPattern && reader.fields.has_item(key, "shared") && !reader.fields.has_item(key, "S")) {
      note_words(reader);
    } else {
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

std::vector<LayerKind> by_layer_types(const ConfigReader& reader, std::int64_t num_layers) {
  std::vector<LayerKind> kinds;
  note_entries_beyond(reader, kLayerTypes, num_layers);
  for (const std::string& type : reader.fields.strings(kLayerTypes, num_layers)) {
    const std::optional<LayerKind> kind = kind_of(reader.architecture, type);
    if (!kind) {
      reader.fields.fail(fmt::format("{}[{}]", kLayerTypes, kinds.size()),
                         fmt::format("a kind that {} has", reader.architecture.model_type),
                         fmt::format("\"{}\"", type));
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
    std::vector<LayerKind> kinds = by_layer_types(reader, num_layers);
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
    return by_layer_types(reader, num_layers);
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
  std::vector<Sharing> said = parse_sharing_fields(reader, kinds);
  if (said.empty()) {
    return std::vector<bool>(kinds.size(), false);
  }
  require_agreement(fields, said);
  Sharing& sharing = said.front();
  require_a_source(fields, sharing, kinds);
  const bool any = any_of(sharing.shares);
  if (any && said.size() == 1 && sharing.key == kTypes) {
    note_types_alone(reader);
  } else {
    note_who_shares(reader, differ && sharing.key == kTypes && said.size() > 1 ? said[1] : sharing);
  }
  if (any && fields.is("use_index_cache", false)) {
    reader.note("use_index_cache", fmt::format("false, beside {}", sharing.key),
                "layers share all the same: vLLM's documentation asks for true, but what selects does not read it");
  }
  return std::move(sharing.shares);
}

}  // namespace headrace
