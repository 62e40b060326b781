// SPDX-License-Identifier: Apache-2.0
#include "geometry/config_yarn.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>

#include "geometry/limits.h"
#include "geometry/yarn.h"

namespace headrace {
namespace {

constexpr Range kFactor{1.0, 1e6};
constexpr Range kBeta{1e-3, 1e6};
constexpr Range kMscale{0.0, 100.0};
constexpr Range kAttentionFactor{1e-3, 1e3};
constexpr std::string_view kLength = "original_max_position_embeddings";

constexpr std::array<std::string_view, 11> kFields = {"factor",
                                                      kLength,
                                                      "beta_fast",
                                                      "beta_slow",
                                                      "mscale",
                                                      "mscale_all_dim",
                                                      "attention_factor",
                                                      "attn_factor",
                                                      "truncate",
                                                      "extrapolation_factor",
                                                      "apply_yarn_scaling"};

// Null counts as absent here, as in transformers.
std::optional<double> number_or_null(const ConfigFields& rope, std::string_view key, Range range) {
  return rope.has(key) ? std::optional(rope.number(key, range)) : std::nullopt;
}

// Transformers treats 0 like an absent value in mscale, mscale_all_dim and the betas.
std::optional<double> nonzero(std::optional<double> value) { return value == 0.0 ? std::nullopt : value; }

// Engines would divide by a 0 here, and cannot compute with a null.
double beta_or(const ConfigReader& reader, const ConfigFields& rope, std::string_view key, double fallback) {
  if (!reader.as_engines()) {
    return nonzero(number_or_null(rope, key, {0.0, kBeta.high})).value_or(fallback);
  }
  return rope.optional_number(key, kBeta).value_or(fallback);
}

// Beside the rope object, where some configurations have it, it wins; without either it is the whole length.
std::int64_t parse_length(const ConfigReader& reader, const ConfigFields& rope, std::int64_t max_positions) {
  if (reader.fields.present(kLength)) {
    if (!rope.same_at(kLength, reader.fields)) {
      reader.note(
          kLength,
          fmt::format("{}, beside {} in {}", reader.fields.shown(kLength), rope.shown(kLength), rope.path_of(kLength)),
          fmt::format("{} is taken, by engines and transformers", reader.fields.shown(kLength)));
    }
    return reader.fields.integer(kLength, 1, kMaxPositions);
  }
  if (!rope.present(kLength)) {
    reader.note(rope, kLength, "nothing",
                fmt::format("max_position_embeddings is taken, {}, by engines and transformers", max_positions));
    return max_positions;
  }
  return rope.integer(kLength, 1, kMaxPositions);
}

// Engines know `attn_factor` in place of `attention_factor`, and an absent mscale is 1 to them, an absent
// mscale_all_dim 0.
double engines_attention_factor(const ConfigFields& rope, double factor) {
  const double mscale = number_or_null(rope, "mscale", kMscale).value_or(1.0);
  const double mscale_all_dim = number_or_null(rope, "mscale_all_dim", kMscale).value_or(0.0);
  return yarn_temperature(factor, mscale) / yarn_temperature(factor, mscale_all_dim) *
         number_or_null(rope, "attn_factor", kAttentionFactor).value_or(1.0);
}

void read_attention_factor(const ConfigReader& reader, const ConfigFields& rope, Yarn& yarn) {
  const double transformers = yarn_attention_factor(yarn);
  const double engines = engines_attention_factor(rope, yarn.factor);
  if (std::abs(engines - transformers) <= 1e-12 * transformers) {
    return;
  }
  constexpr std::array<std::string_view, 4> kKeys = {"attention_factor", "attn_factor", "mscale", "mscale_all_dim"};
  const auto* key = std::find_if(kKeys.begin(), kKeys.end(), [&](std::string_view k) { return rope.has(k); });
  reader.note_difference(rope, key == kKeys.end() ? "attention_factor" : *key,
                         fmt::format("sines and cosines times {:g}", engines),
                         fmt::format("sines and cosines times {:g}", transformers));
  if (reader.as_engines()) {
    yarn.attention_factor = engines;
  }
}

void read_truncate(const ConfigReader& reader, const ConfigFields& rope, Yarn& yarn) {
  if (rope.optional_boolean("truncate").value_or(true)) {
    return;
  }
  reader.note_difference(rope, "truncate", "whole dims bound the ramp, always", "the ramp's bounds are not rounded");
  yarn.truncate = reader.as_engines();
}

// What vLLM and SGLang read and Headrace does not compute.
void refuse_other_scalings(const ConfigReader& reader, const ConfigFields& rope) {
  const auto check = [&](std::string_view key, const io::Json& neutral, const std::string& expected) {
    if (!rope.has(key) || rope.is(key, neutral)) {
      return;
    }
    if (reader.as_engines()) {
      rope.fail(key, expected);
    }
    reader.note(rope, key, rope.shown(key), "ignored, as transformers does");
  };
  check("extrapolation_factor", 1, "1: no other is supported");
  check("apply_yarn_scaling", true, "true: no other scaling is supported");
}

}  // namespace

bool is_yarn_field(std::string_view key) { return std::find(kFields.begin(), kFields.end(), key) != kFields.end(); }

Yarn parse_yarn(const ConfigReader& reader, const ConfigFields& rope, std::int64_t max_positions) {
  Yarn yarn;
  if (!rope.present("factor")) {
    rope.fail("factor", fmt::format("a number in [{:g}, {:g}], which the {} \"yarn\" needs", kFactor.low, kFactor.high,
                                    rope.present("rope_type") ? "rope_type" : "type"));
  }
  yarn.factor = rope.number("factor", kFactor);
  yarn.original_max_position_embeddings = parse_length(reader, rope, max_positions);
  yarn.beta_fast = beta_or(reader, rope, "beta_fast", yarn.beta_fast);
  yarn.beta_slow = beta_or(reader, rope, "beta_slow", yarn.beta_slow);
  if (yarn.beta_fast < yarn.beta_slow) {
    rope.fail("beta_fast", "at least beta_slow, " + std::to_string(yarn.beta_slow));
  }
  yarn.mscale = nonzero(number_or_null(rope, "mscale", kMscale));
  yarn.mscale_all_dim = nonzero(number_or_null(rope, "mscale_all_dim", kMscale));
  yarn.attention_factor = number_or_null(rope, "attention_factor", kAttentionFactor);
  refuse_other_scalings(reader, rope);
  read_attention_factor(reader, rope, yarn);
  read_truncate(reader, rope, yarn);
  return yarn;
}

}  // namespace headrace
