// SPDX-License-Identifier: Apache-2.0
#include "geometry/config_rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>

#include "geometry/config_yarn.h"
#include "geometry/limits.h"
#include "geometry/yarn.h"

namespace headrace {
namespace {

constexpr Range kThetaRange{2.0, 1e12};
constexpr std::string_view kParameters = "rope_parameters";
constexpr std::string_view kScaling = "rope_scaling";
constexpr std::string_view kThetaKey = "rope_theta";

// Rope on a part of qk_rope_head_dim only: no MLA model has it, and the frequencies would be others.
void require_whole(const ConfigFields& fields) {
  constexpr std::string_view kKey = "partial_rotary_factor";
  if (fields.present(kKey) && fields.number(kKey, {0.0, 1.0}) != 1.0) {
    fields.fail(kKey, "1");
  }
}

// An object whose type differs from layer to layer nests others; and a field that nobody reads may be a misspelt one.
void check_keys(const ConfigReader& reader, const ConfigFields& rope) {
  constexpr std::array<std::string_view, 4> kKnown = {"rope_type", "type", kThetaKey, "partial_rotary_factor"};
  for (const std::string& key : rope.keys()) {
    if (std::find(kKnown.begin(), kKnown.end(), key) != kKnown.end() || is_yarn_field(key)) {
      continue;
    }
    if (rope.shown(key) == "an object") {
      rope.fail(key, "no object: one rope for all layers");
    }
    reader.note(rope, key, rope.shown(key), "ignored: no field of rope");
  }
}

// The object of either spelling. An empty one counts as absent, as in transformers.
std::optional<ConfigFields> rope_object(const ConfigReader& reader) {
  const auto given = [&](std::string_view key) {
    const std::optional<ConfigFields> object = reader.fields.optional_object(key);
    return object && !object->empty() ? object : std::nullopt;
  };
  const std::optional<ConfigFields> scaling = given(kScaling);
  const std::optional<ConfigFields> parameters = given(kParameters);
  if (scaling && parameters && !scaling->same_as(*parameters)) {
    reader.note(kScaling, "beside a rope_parameters that says otherwise",
                "rope_scaling is taken, by engines and transformers");
  }
  return scaling ? scaling : parameters;
}

// `rope_type`, or its older name `type`; without either plain rope.
std::string rope_type(const ConfigReader& reader, const ConfigFields& rope) {
  const std::string_view key = rope.present("rope_type") || !rope.present("type") ? "rope_type" : "type";
  std::string type = rope.present(key) ? rope.string(key) : "default";
  if (rope.present("type") && rope.string("type") != type) {
    rope.fail("type", "the same as rope_type, \"" + type + "\"");
  }
  if (type != "default" && type != "yarn") {
    rope.fail(key, "\"default\" or \"yarn\"");
  }
  if (!rope.present(key) && rope.has("factor")) {
    reader.note(rope, key, "nothing, beside a factor",
                "taken as \"default\", by engines and transformers: the context is not extended");
  }
  return type;
}

double parse_theta(const ConfigReader& reader, const std::optional<ConfigFields>& rope) {
  if (!rope || !rope->present(kThetaKey)) {
    if (!reader.fields.present(kThetaKey)) {
      reader.fields.fail(kThetaKey, fmt::format("a number in [{:g}, {:g}], here, in {} or in {}", kThetaRange.low,
                                                kThetaRange.high, kParameters, kScaling));
    }
    return reader.fields.number(kThetaKey, kThetaRange);
  }
  if (reader.fields.has(kThetaKey) && !rope->same_at(kThetaKey, reader.fields)) {
    reader.note(kThetaKey,
                fmt::format("{}, beside {} in {}", reader.fields.shown(kThetaKey), rope->shown(kThetaKey),
                            rope->path_of(kThetaKey)),
                fmt::format("{} is taken, by engines and transformers", rope->shown(kThetaKey)));
  }
  return rope->number(kThetaKey, kThetaRange);
}

bool parse_interleave(const ConfigReader& reader) {
  constexpr std::string_view kKey = "rope_interleave";
  const bool interleave = reader.fields.optional_boolean(kKey).value_or(true);
  if (!interleave && !reader.architecture.has_rope_interleave) {
    reader.fields.fail(kKey, "true, as the architecture always has it");
  }
  if (!interleave) {
    reader.note(kKey, "false, which vLLM does not read", "taken as SGLang and transformers read it");
  }
  return interleave;
}

// With no dims to rotate only mscale_all_dim is left to mean something.
void note_no_dims(const ConfigReader& reader, const Rope& rope) {
  for (const std::string_view key : {kThetaKey, kParameters, kScaling}) {
    if (reader.fields.has(key)) {
      const bool scales = key != kThetaKey && rope.yarn && rope.yarn->mscale_all_dim;
      reader.note(key, fmt::format("{}, beside qk_rope_head_dim 0", reader.fields.shown(key)),
                  scales ? "no rope; mscale_all_dim scales the softmax all the same" : "ignored: no rope");
    }
  }
}

}  // namespace

Rope parse_rope(const ConfigReader& reader, std::int64_t dim, std::int64_t max_positions) {
  Rope rope;
  rope.dim = dim;
  rope.interleave = parse_interleave(reader);
  if (reader.architecture.nope_only) {
    return rope;
  }
  require_whole(reader.fields);
  const std::optional<ConfigFields> object = rope_object(reader);
  if (object) {
    require_whole(*object);
    check_keys(reader, *object);
    if (rope_type(reader, *object) == "yarn") {
      rope.yarn = parse_yarn(reader, *object, max_positions);
    }
  }
  if (dim > 0 || reader.fields.present(kThetaKey) || (object && object->present(kThetaKey))) {
    rope.theta = parse_theta(reader, object);
  }
  if (dim == 0) {
    note_no_dims(reader, rope);
  }
  return rope;
}

double softmax_scale(std::int64_t qk_head_dim, const Rope& rope) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(qk_head_dim));
  if (!rope.yarn || !rope.yarn->mscale_all_dim) {
    return scale;
  }
  const double mscale = yarn_temperature(rope.yarn->factor, *rope.yarn->mscale_all_dim);
  return scale * mscale * mscale;
}

}  // namespace headrace
