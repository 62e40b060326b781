// SPDX-License-Identifier: Apache-2.0
#include "geometry/config_rope.h"

#include <cmath>
#include <string>

#include "geometry/limits.h"

namespace headrace {
namespace {

constexpr Range kTheta{2.0, 1e12};
constexpr Range kFactor{1.0, 1e6};
constexpr Range kBeta{1e-3, 1e6};
constexpr Range kMscale{0.0, 100.0};
constexpr Range kAttentionFactor{1e-3, 1e3};

// Transformers treats 0 like an absent value in mscale, mscale_all_dim and the betas.
std::optional<double> nonzero(std::optional<double> value) { return value == 0.0 ? std::nullopt : value; }

double beta_or(const ConfigFields& fields, std::string_view key, double fallback) {
  return nonzero(fields.optional_number(key, {0.0, kBeta.high})).value_or(fallback);
}

Yarn parse_yarn(const ConfigFields& fields) {
  Yarn yarn;
  yarn.factor = fields.number("factor", kFactor);
  yarn.original_max_position_embeddings = fields.integer("original_max_position_embeddings", 1, kMaxPositions);
  yarn.beta_fast = beta_or(fields, "beta_fast", yarn.beta_fast);
  yarn.beta_slow = beta_or(fields, "beta_slow", yarn.beta_slow);
  if (yarn.beta_fast < yarn.beta_slow) {
    fields.fail("beta_fast", "at least beta_slow, " + std::to_string(yarn.beta_slow));
  }
  yarn.mscale = nonzero(fields.optional_number("mscale", kMscale));
  yarn.mscale_all_dim = nonzero(fields.optional_number("mscale_all_dim", kMscale));
  yarn.attention_factor = fields.optional_number("attention_factor", kAttentionFactor);
  yarn.truncate = fields.optional_boolean("truncate").value_or(yarn.truncate);
  return yarn;
}

// The key that gives the type: `rope_type`, or its older name `type`.
std::string_view type_key(const ConfigFields& fields) {
  if (!fields.has("rope_type") && fields.has("type")) {
    return "type";
  }
  if (fields.has("type") && fields.string("type") != fields.string("rope_type")) {
    fields.fail("type", "the same as rope_type, \"" + fields.string("rope_type") + "\"");
  }
  return "rope_type";
}

// Rope on a part of qk_rope_head_dim only: no MLA model has it, and the frequencies would be others.
void require_whole(const ConfigFields& fields) {
  constexpr std::string_view kKey = "partial_rotary_factor";
  if (fields.has(kKey) && fields.number(kKey, {0.0, 1.0}) != 1.0) {
    fields.fail(kKey, "1");
  }
}

std::optional<Yarn> parse_scaling(const ConfigFields& fields) {
  require_whole(fields);
  const std::string_view key = type_key(fields);
  const std::string type = fields.string(key);
  if (type == "default") {
    return std::nullopt;
  }
  if (type != "yarn") {
    fields.fail(key, "\"default\" or \"yarn\"");
  }
  return parse_yarn(fields);
}

}  // namespace

Rope parse_rope(const Architecture& architecture, const ConfigFields& fields, std::int64_t dim) {
  Rope rope;
  rope.dim = dim;
  rope.interleave = fields.optional_boolean("rope_interleave").value_or(true);
  if (!rope.interleave && !architecture.has_rope_interleave) {
    fields.fail("rope_interleave", "true, as the architecture always has it");
  }
  require_whole(fields);

  const std::optional<ConfigFields> parameters = fields.optional_object("rope_parameters");
  const std::optional<ConfigFields> scaling = fields.optional_object("rope_scaling");
  if (parameters && scaling) {
    fields.fail("rope_scaling", "nothing beside rope_parameters");
  }
  if (parameters || scaling) {
    rope.yarn = parse_scaling(parameters ? *parameters : *scaling);
  }
  if (architecture.nope_only) {
    rope.yarn.reset();  // such a model ignores its rope fields, the softmax scale included
  }
  const ConfigFields& theta_owner =
      parameters && (parameters->has("rope_theta") || !fields.has("rope_theta")) ? *parameters : fields;
  if (dim > 0 || theta_owner.has("rope_theta")) {
    rope.theta = theta_owner.number("rope_theta", kTheta);
  }
  return rope;
}

double softmax_scale(std::int64_t qk_head_dim, const Rope& rope) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(qk_head_dim));
  if (!rope.yarn || !rope.yarn->mscale_all_dim) {
    return scale;
  }
  // A factor of 1 gives log 0 and so the mscale of 1 that the architectures define for it.
  const double mscale = 0.1 * *rope.yarn->mscale_all_dim * std::log(rope.yarn->factor) + 1.0;
  return scale * mscale * mscale;
}

}  // namespace headrace
