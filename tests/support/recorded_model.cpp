// SPDX-License-Identifier: Apache-2.0
#include "support/recorded_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <span>
#include <vector>

#include "headrace/model.h"
#include "support/configs.h"
#include "support/files.h"
#include "support/random.h"

namespace headrace::test {
namespace {

using Doubles = std::vector<double>;

std::size_t at(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

/// A stored matrix, or a vector as one row.
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<bfloat16> values;

  [[nodiscard]] double operator()(std::int64_t r, std::int64_t c) const {
    return static_cast<double>(static_cast<float>(values[at(r * columns + c)]));
  }
};

Matrix random_matrix(Random& random, std::int64_t rows, std::int64_t columns, double stddev, double mean = 0.0) {
  Matrix matrix{rows, columns, {}};
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    matrix.values.emplace_back(static_cast<float>(mean + stddev * static_cast<double>(random.normal())));
  }
  return matrix;
}

Matrix random_projection(Random& random, std::int64_t outputs, std::int64_t inputs, double gain = 1.0) {
  return random_matrix(random, outputs, inputs, gain / std::sqrt(static_cast<double>(inputs)));
}

Matrix random_norm(Random& random, std::int64_t size) { return random_matrix(random, 1, size, 0.1, 1.0); }

/// The layer's weights that its output depends on, beside the indexer's.
struct LayerMatrices {
  bool in_bfloat16 = false;
  Matrix q_a, q_a_norm, q_b, kv_a, kv_a_norm, kv_b, o;
};

constexpr std::int64_t kQueryRank = 96;

LayerMatrices random_layer(Random& random, const ModelConfig& config, double score_stddev) {
  const Geometry& g = config.geometry;
  LayerMatrices m;
  m.q_a = random_projection(random, kQueryRank, config.hidden_size);
  m.q_a_norm = random_norm(random, kQueryRank);
  m.q_b = random_projection(random, g.num_heads * g.qk_head_dim(), kQueryRank, score_stddev);
  m.kv_a = random_projection(random, g.latent_dim(), config.hidden_size);
  m.kv_a_norm = random_norm(random, g.kv_lora_rank);
  m.kv_b = random_projection(random, g.num_heads * (g.qk_nope_head_dim + g.v_head_dim), g.kv_lora_rank);
  m.o = random_projection(random, config.hidden_size, g.num_heads * g.v_head_dim);
  return m;
}

void add(SafetensorsWriter& writer, const std::string& name, const Matrix& matrix) {
  if (matrix.rows == 1) {
    writer.add(name, {matrix.columns}, matrix.values);
  } else {
    writer.add(name, {matrix.rows, matrix.columns}, matrix.values);
  }
}

void add_indexer(SafetensorsWriter& writer, const std::string& prefix, const ModelConfig& config, Random& random) {
  const IndexerGeometry& indexer = *config.indexer;
  const std::int64_t dim = indexer.head_dim;
  add(writer, prefix + "wq_b.weight", random_projection(random, indexer.num_heads * dim, kQueryRank));
  add(writer, prefix + "wk.weight", random_projection(random, dim, config.hidden_size));
  add(writer, prefix + "k_norm.weight", random_norm(random, dim));
  add(writer, prefix + "k_norm.bias", random_matrix(random, 1, dim, 0.1));
  add(writer, prefix + "weights_proj.weight", random_projection(random, indexer.num_heads, config.hidden_size));
  if (indexer.kpool) {
    add(writer, prefix + "index_kpool_compress_ape", random_matrix(random, indexer.pool, dim, 0.1));
    add(writer, prefix + "index_kpool_compress_gate", random_projection(random, dim, config.hidden_size));
  }
}

// ---- the layer in float64 -------------------------------------------------------------------------------------------

/// What a stage hands on: itself, or rounded.
void hand_on(std::span<double> values, bool in_bfloat16) {
  for (double& value : values) {
    value = in_bfloat16 ? static_cast<double>(static_cast<float>(bfloat16(static_cast<float>(value)))) : value;
  }
}

Doubles product(const Matrix& weight, std::span<const double> x, bool in_bfloat16) {
  Doubles y(at(weight.rows));
  for (std::int64_t r = 0; r < weight.rows; ++r) {
    for (std::int64_t c = 0; c < weight.columns; ++c) {
      y[at(r)] += weight(r, c) * x[at(c)];
    }
  }
  hand_on(y, in_bfloat16);
  return y;
}

void rms_norm(std::span<double> x, const Matrix& weight, double epsilon) {
  const double sum = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
  const double factor = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + epsilon);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] *= factor * weight(0, static_cast<std::int64_t>(i));
  }
}

/// Pairs (0, 1), (2, 3), ...; where the rotated values lie matters to no product of two of them.
void rotate(std::span<double> x, std::int64_t position, double theta) {
  for (std::size_t i = 0; i + 1 < x.size(); i += 2) {
    const double angle =
        static_cast<double>(position) / std::pow(theta, static_cast<double>(i) / static_cast<double>(x.size()));
    const double a = x[i];
    const double b = x[i + 1];
    x[i] = a * std::cos(angle) - b * std::sin(angle);
    x[i + 1] = a * std::sin(angle) + b * std::cos(angle);
  }
}

/// Latents and rope keys of every token, [S][R + rope].
std::vector<Doubles> keys_of(const ModelConfig& config, const LayerMatrices& m, const std::vector<Doubles>& hidden) {
  std::vector<Doubles> keys;
  for (std::size_t t = 0; t < hidden.size(); ++t) {
    Doubles key = product(m.kv_a, hidden[t], m.in_bfloat16);
    const std::span<double> latent = std::span(key).first(at(config.geometry.kv_lora_rank));
    rms_norm(latent, m.kv_a_norm, config.kv_a_norm_epsilon);
    rotate(std::span(key).subspan(latent.size()), static_cast<std::int64_t>(t), config.rope.theta);
    hand_on(key, m.in_bfloat16);
    keys.push_back(std::move(key));
  }
  return keys;
}

/// Per token and head K_nope, then V: [S][H * (nope + v)].
std::vector<Doubles> up_projected(const ModelConfig& config, const LayerMatrices& m, const std::vector<Doubles>& keys) {
  std::vector<Doubles> result;
  result.reserve(keys.size());
  for (const Doubles& key : keys) {
    result.push_back(product(m.kv_b, std::span(key).first(at(config.geometry.kv_lora_rank)), m.in_bfloat16));
  }
  return result;
}

Doubles output_of(const ModelConfig& config, const LayerMatrices& m, std::span<const double> hidden,
                  std::int64_t position, std::span<const std::int32_t> selected, const std::vector<Doubles>& keys,
                  const std::vector<Doubles>& up) {
  const Geometry& g = config.geometry;
  Doubles low_rank = product(m.q_a, hidden, m.in_bfloat16);
  rms_norm(low_rank, m.q_a_norm, config.q_a_norm_epsilon);
  hand_on(low_rank, m.in_bfloat16);
  Doubles q = product(m.q_b, low_rank, m.in_bfloat16);
  Doubles attended(at(g.num_heads * g.v_head_dim));
  for (std::int64_t head = 0; head < g.num_heads; ++head) {
    const std::span<double> query = std::span(q).subspan(at(head * g.qk_head_dim()), at(g.qk_head_dim()));
    rotate(query.subspan(at(g.qk_nope_head_dim)), position, config.rope.theta);
    hand_on(query, m.in_bfloat16);
    const std::int64_t first = head * (g.qk_nope_head_dim + g.v_head_dim);
    Doubles weights;
    for (const std::int32_t key : selected) {
      double score = 0.0;
      for (std::int64_t i = 0; i < g.qk_nope_head_dim; ++i) {
        score += query[at(i)] * up[at(key)][at(first + i)];
      }
      for (std::int64_t i = 0; i < g.qk_rope_head_dim; ++i) {
        score += query[at(g.qk_nope_head_dim + i)] * keys[at(key)][at(g.kv_lora_rank + i)];
      }
      weights.push_back(config.softmax_scale * score);
    }
    const double most = *std::max_element(weights.begin(), weights.end());
    double sum = 0.0;
    for (double& weight : weights) {
      weight = std::exp(weight - most);
      sum += weight;
    }
    for (double& weight : weights) {
      weight /= sum;
    }
    hand_on(weights, m.in_bfloat16);
    for (std::size_t j = 0; j < weights.size(); ++j) {
      for (std::int64_t i = 0; i < g.v_head_dim; ++i) {
        attended[at(head * g.v_head_dim + i)] += weights[j] * up[at(selected[j])][at(first + g.qk_nope_head_dim + i)];
      }
    }
  }
  hand_on(attended, m.in_bfloat16);
  return product(m.o, attended, m.in_bfloat16);
}

/// As many keys as the rule lets a row select, at random among those that it sees.
std::vector<std::int32_t> random_keys(Random& random, const SelectionRule& rule, std::int64_t position) {
  std::vector<std::int32_t> keys(at(position + 1));
  std::iota(keys.begin(), keys.end(), 0);
  for (std::int64_t i = position; i > 0; --i) {
    std::swap(keys[at(i)], keys[at(random.below(i + 1))]);
  }
  keys.resize(at(rule.keys_at(position)));
  return keys;
}

nlohmann::json model_document(const RecordedModelSpec& spec) {
  nlohmann::json config = config_of(spec.model_type);
  nlohmann::json& text = text_of(config);
  text["num_hidden_layers"] = 1;
  text["hidden_size"] = 160;
  text["num_attention_heads"] = 3;
  text["num_key_value_heads"] = 3;
  text["q_lora_rank"] = kQueryRank;
  text["kv_lora_rank"] = spec.kv_lora_rank;
  text["qk_nope_head_dim"] = 48;
  text["qk_rope_head_dim"] = spec.model_type == "glm5_next" ? 0 : 64;
  text["v_head_dim"] = 40;
  text["index_topk"] = 32;
  text["index_head_dim"] = spec.model_type == "glm5_next" ? 32 : 64;
  if (spec.model_type == "glm5_next") {
    text["layer_types"] = {"deepseek_sparse_attention"};
  }
  return config;
}

}  // namespace

void write_recorded_model(const std::filesystem::path& folder, const RecordedModelSpec& spec) {
  const nlohmann::json document = model_document(spec);
  const ModelConfig config = parse(document);
  Random random(spec.seed);
  LayerMatrices m = random_layer(random, config, spec.score_stddev);
  m.in_bfloat16 = spec.in_bfloat16;

  const std::string prefix = config.weight_prefix + "0.self_attn.";
  SafetensorsWriter checkpoint;
  add(checkpoint, prefix + "q_a_proj.weight", m.q_a);
  add(checkpoint, prefix + "q_a_layernorm.weight", m.q_a_norm);
  add(checkpoint, prefix + "q_b_proj.weight", m.q_b);
  add(checkpoint, prefix + "kv_a_proj_with_mqa.weight", m.kv_a);
  add(checkpoint, prefix + "kv_a_layernorm.weight", m.kv_a_norm);
  add(checkpoint, prefix + "kv_b_proj.weight", m.kv_b);
  add(checkpoint, prefix + "o_proj.weight", m.o);
  add_indexer(checkpoint, prefix + "indexer.", config, random);

  std::vector<float> stored_hidden;
  std::vector<Doubles> hidden(at(spec.tokens));
  for (Doubles& row : hidden) {
    for (std::int64_t i = 0; i < config.hidden_size; ++i) {
      stored_hidden.push_back(random.normal());
      row.push_back(static_cast<double>(stored_hidden.back()));
    }
    hand_on(row, spec.in_bfloat16);
  }
  const std::vector<Doubles> keys = keys_of(config, m, hidden);
  const std::vector<Doubles> up = up_projected(config, m, keys);
  const SelectionRule rule = config.selection_rule(0);
  std::vector<float> output;
  std::vector<std::int32_t> topk_indices;
  for (std::int64_t t = 0; t < spec.tokens; ++t) {
    std::vector<std::int32_t> selected = random_keys(random, rule, t);
    const Doubles row = output_of(config, m, hidden[at(t)], t, selected, keys, up);
    std::transform(row.begin(), row.end(), std::back_inserter(output),
                   [](double value) { return static_cast<float>(value); });
    selected.resize(at(rule.width()), -1);
    topk_indices.insert(topk_indices.end(), selected.begin(), selected.end());
  }
  SafetensorsWriter recording;
  recording.add("layers.0.hidden_states", {spec.tokens, config.hidden_size}, stored_hidden);
  recording.add("layers.0.output", {spec.tokens, config.hidden_size}, output);
  recording.add("layers.0.topk_indices", {spec.tokens, rule.width()}, topk_indices);

  write_file(folder / "config.json", document.dump());
  write_file(folder / "model.safetensors", checkpoint.bytes());
  write_file(folder / "recording.safetensors", recording.bytes());
}

}  // namespace headrace::test
