// SPDX-License-Identifier: Apache-2.0
#include "headrace/recording.h"

#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "headrace/error.h"
#include "io/safetensors.h"

namespace headrace {
namespace {

constexpr std::string_view kPrefix = "layers.";

std::string tensor_name(std::int64_t layer, std::string_view field) {
  return std::string(kPrefix) + std::to_string(layer) + "." + std::string(field);
}

// The number in "layers.12.output"; nothing for other names.
std::optional<std::int64_t> layer_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  name.remove_prefix(kPrefix.size());
  std::int64_t layer = 0;
  const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const bool is_number = error == std::errc{} && layer >= 0 && rest != name.data() + name.size() && *rest == '.';
  return is_number ? std::optional(layer) : std::nullopt;
}

// A matrix with at least one row and one column.
Tensor load_matrix(const io::Safetensors& file, const std::string& name, DType dtype) {
  const io::StoredTensor stored = file.tensor(name);
  expect_dtype(name, dtype, stored.dtype);
  if (stored.shape.size() != 2 || stored.bytes.empty()) {
    throw Error(name, "a matrix that is not empty", "shape " + io::shape_to_string(stored.shape));
  }
  Tensor result(dtype, {stored.shape[0], stored.shape[1]});
  std::memcpy(result.data(), stored.bytes.data(), stored.bytes.size());
  return result;
}

RecordedLayer load_layer(const io::Safetensors& file, std::int64_t layer) {
  RecordedLayer result;
  result.layer = layer;
  result.hidden_states = load_matrix(file, tensor_name(layer, "hidden_states"), DType::float32);
  const std::int64_t rows = result.hidden_states.dim(0);
  const std::string output = tensor_name(layer, "output");
  result.output = load_matrix(file, output, DType::float32);
  result.output.view().expect(output, {rows, result.hidden_states.dim(1)});
  if (const std::string topk = tensor_name(layer, "topk_indices"); file.contains(topk)) {
    result.topk_indices = load_matrix(file, topk, DType::int32);
    result.topk_indices.view().expect(topk, {rows, -1});
  }
  return result;
}

}  // namespace

std::vector<RecordedLayer> load_recording(const std::filesystem::path& path) {
  const io::Safetensors file(path);
  std::set<std::int64_t> layers;
  for (const std::string& name : file.names()) {
    if (const std::optional<std::int64_t> layer = layer_of(name)) {
      layers.insert(*layer);
    }
  }
  if (layers.empty()) {
    throw Error(path.string(), "a recording with tensors layers.{i}.hidden_states and .output", "none of them");
  }
  std::vector<RecordedLayer> result;
  result.reserve(layers.size());
  for (const std::int64_t layer : layers) {
    result.push_back(load_layer(file, layer));
  }
  return result;
}

std::optional<Reading> recorded_reading(const std::filesystem::path& path) {
  const std::optional<std::string> name = io::Safetensors(path).metadata("reading");
  if (!name) {
    return std::nullopt;
  }
  try {
    return reading_from_name(*name);
  } catch (const Error& error) {
    error.throw_for(path.string() + ": __metadata__.reading");
  }
}

}  // namespace headrace
