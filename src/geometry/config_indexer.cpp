// SPDX-License-Identifier: Apache-2.0
#include "geometry/config_indexer.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

#include "geometry/limits.h"

namespace headrace {
namespace {

constexpr double kKeyNormEpsilon = 1e-6;  // of the LayerNorm, in every implementation

// Transformers' defaults for GLM-5.3-Flash's family.
constexpr std::int64_t kDefaultPool = 16;
constexpr bool kDefaultTail = true;

// The default pool is not the published model's, so who misspelt the field would get another layer.
std::int64_t parse_pool(const ConfigReader& reader, std::int64_t topk) {
  constexpr std::string_view kKey = "index_kpool";
  const std::optional<std::int64_t> pool = reader.fields.optional_integer(kKey, 1, topk);
  if (!pool) {
    reader.note(kKey, "nothing", fmt::format("{} is taken, as transformers fills it in", kDefaultPool));
  }
  return pool.value_or(kDefaultPool);
}

void parse_kpool(const ConfigReader& reader, IndexerGeometry& indexer) {
  const ConfigFields& fields = reader.fields;
  indexer.kpool = true;
  indexer.pool = parse_pool(reader, indexer.topk);
  indexer.tail = fields.optional_boolean("index_kpool_always_select_tail").value_or(kDefaultTail);
  if (indexer.topk % indexer.pool != 0) {
    fields.fail("index_topk", "a multiple of index_kpool, " + std::to_string(indexer.pool));
  }
  if (!fields.optional_boolean("index_kpool_compress").value_or(true)) {
    fields.fail("index_kpool_compress", "true: pools whose keys are not compressed are not supported");
  }
}

// Engines take the field, half-split where it is absent; transformers has it fixed.
bool parse_interleave(const ConfigReader& reader, std::int64_t rope_dim) {
  constexpr std::string_view kKey = "indexer_rope_interleave";
  const auto name = [](bool interleaves) {
    return interleaves ? "pairs (0, 1), (2, 3), ..." : "pairs (0, dim/2), ...";
  };
  const bool engines = reader.fields.optional_boolean(kKey).value_or(false);
  const bool transformers = reader.architecture.transformers_indexer_interleaves;
  if (rope_dim > 0 && engines != transformers) {
    reader.note_difference(kKey, name(engines), name(transformers));
  }
  return reader.as_engines() ? engines : transformers;
}

}  // namespace

std::optional<IndexerGeometry> parse_indexer(const ConfigReader& reader, std::int64_t rope_dim) {
  if (reader.architecture.indexer == Architecture::Indexer::none) {
    return std::nullopt;
  }
  const ConfigFields& fields = reader.fields;
  IndexerGeometry indexer;
  indexer.num_heads = fields.integer("index_n_heads", 1, kMaxHeads);
  indexer.head_dim = fields.integer("index_head_dim", 1, kMaxHeadDim);
  indexer.topk = fields.integer("index_topk", 1, kMaxPositions);
  indexer.rope_dim = rope_dim;
  indexer.rope_interleave = parse_interleave(reader, rope_dim);
  indexer.key_norm_epsilon = kKeyNormEpsilon;
  if (indexer.head_dim < rope_dim) {
    fields.fail("index_head_dim", "at least qk_rope_head_dim, " + std::to_string(rope_dim));
  }
  if (reader.architecture.indexer == Architecture::Indexer::kpool) {
    parse_kpool(reader, indexer);
  }
  return indexer;
}

}  // namespace headrace
