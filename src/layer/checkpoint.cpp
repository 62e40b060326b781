// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/parallel.h"
#include "headrace/error.h"
#include "headrace/layer.h"
#include "io/checkpoint_folder.h"
#include "io/float_rows.h"
#include "layer/weight_specs.h"

namespace headrace {
namespace {

using layer::WeightSpec;

// Which dimension tensor parallelism cuts: a rank has the rows (outputs) of its heads, or the columns (inputs).
enum class Cut { none, rows, columns };

Cut cut_of(std::string_view weight) {
  constexpr std::array<std::string_view, 3> kHeadOutputs = {"q_proj", "q_b_proj", "kv_b_proj"};
  if (std::find(kHeadOutputs.begin(), kHeadOutputs.end(), weight) != kHeadOutputs.end()) {
    return Cut::rows;
  }
  return weight == "o_proj" ? Cut::columns : Cut::none;
}

// Modules' names get ".weight" in a checkpoint; bare parameters and names that end so already do not.
std::string_view suffix_of(std::string_view weight) {
  const bool is_parameter =
      weight.ends_with(".weight") || weight.ends_with(".bias") || weight.starts_with("indexer.index_kpool_");
  return is_parameter ? "" : ".weight";
}

// One rank's part of a tensor: as many parts as ranks, cut along one dimension.
struct Part {
  std::int64_t rows = 1;  // of the part; a vector is one row
  std::int64_t columns = 0;
  Cut cut = Cut::none;
  std::int64_t rank = 0;
  std::int64_t ranks = 1;

  [[nodiscard]] std::int64_t all_rows() const { return cut == Cut::rows ? rows * ranks : rows; }
  [[nodiscard]] std::int64_t all_columns() const { return cut == Cut::columns ? columns * ranks : columns; }
  [[nodiscard]] std::int64_t first_row() const { return cut == Cut::rows ? rows * rank : 0; }
  [[nodiscard]] std::int64_t first_column() const { return cut == Cut::columns ? columns * rank : 0; }
};

constexpr std::int64_t kWorthThreads = std::int64_t{1} << 16;  // values; fewer are copied before a team has gathered

// Every value becomes float32 and is rounded at most once, to the destination's type.
void copy(const io::FloatRows& source, const Part& part, Tensor& out) {
  const auto columns = static_cast<std::size_t>(part.columns);
  const int threads = part.rows * part.columns < kWorthThreads ? 1 : 0;
  device::parallel_for(part.rows, threads, [&](std::int64_t row, int) {
    std::byte* target = out.data() + row * part.columns * size_of(out.dtype());
    if (out.dtype() == DType::float32) {
      source.read(part.first_row() + row, part.first_column(), {reinterpret_cast<float*>(target), columns});
      return;
    }
    std::vector<float> values(columns);
    source.read(part.first_row() + row, part.first_column(), values);
    std::transform(values.begin(), values.end(), reinterpret_cast<bfloat16*>(target),
                   [](float value) { return bfloat16(value); });
  });
}

class LayerReader {
 public:
  LayerReader(const std::filesystem::path& folder, const ModelConfig& config, std::int64_t layer, std::int64_t rank)
      : folder_(folder),
        prefix_(fmt::format("{}{}.self_attn.", config.weight_prefix, layer)),
        rank_(rank),
        ranks_(config.tp) {}

  [[nodiscard]] Tensor read(const WeightSpec& spec) {
    const std::string name = fmt::format("{}{}{}", prefix_, spec.name, suffix_of(spec.name));
    const Cut cut = cut_of(spec.name);
    return spec.columns == 0 ? read_vector(name, spec.dtype, {1, spec.rows, cut, rank_, ranks_})
                             : read_matrix(name, spec.dtype, {spec.rows, spec.columns, cut, rank_, ranks_});
  }

  /// Empty when the checkpoint has none.
  [[nodiscard]] Tensor read_sink(std::int64_t heads) {
    const std::string name = prefix_ + "sinks";
    if (!folder_.contains(name)) {
      return {};
    }
    return read_vector(name, DType::float32, {1, heads, Cut::columns, rank_, ranks_});
  }

 private:
  // The shape is checked before memory is reserved: a part is never larger than the file that holds it.
  Tensor read_vector(const std::string& name, DType dtype, const Part& part) {
    io::StoredTensor stored = folder_.tensor(name, io::kVectorTypes);
    io::expect_shape(stored, {part.all_columns()});
    const io::FloatRows source(std::move(stored));
    Tensor result(dtype, {part.columns});
    copy(source, part, result);
    return result;
  }

  Tensor read_matrix(const std::string& name, DType dtype, const Part& part) {
    io::StoredTensor stored = folder_.tensor(name, io::kMatrixTypes);
    io::expect_shape(stored, {part.all_rows(), part.all_columns()});
    std::optional<io::StoredTensor> scales;
    if (stored.dtype == DType::float8_e4m3) {
      scales = scales_of(stored);
    }
    const io::FloatRows source(std::move(stored), scales);
    Tensor result(dtype, {part.rows, part.columns});
    copy(source, part, result);
    return result;
  }

  // DeepSeek's name, or the one that compressed-tensors and Quark give to the same factors.
  std::optional<io::StoredTensor> scales_of(const io::StoredTensor& matrix) {
    std::optional<io::StoredTensor> found;
    for (const char* ending : {"_scale_inv", "_scale"}) {
      const std::string name = matrix.name + ending;
      if (!folder_.contains(name)) {
        continue;
      }
      io::StoredTensor scales = folder_.tensor(name, io::kScaleTypes);
      if (found) {
        expect_same_scales(matrix, *found, scales);
      } else {
        found = std::move(scales);
      }
    }
    return found;
  }

  static void expect_same_scales(const io::StoredTensor& matrix, const io::StoredTensor& one,
                                 const io::StoredTensor& other) {
    const std::int64_t rows = matrix.shape[0];
    const std::int64_t columns = matrix.shape[1];
    if (io::block_scales(one, rows, columns) != io::block_scales(other, rows, columns)) {
      throw Error(other.name, fmt::format("the scales of {}, or only one of the two", one.name), "other scales");
    }
  }

  io::CheckpointFolder folder_;
  std::string prefix_;
  std::int64_t rank_;
  std::int64_t ranks_;
};

// An error on a weight that the model has only because a field of its configuration says so tells of that field.
Error with_reason(const Error& error, const ModelConfig& config) {
  return {error.argument(),
          fmt::format("{}, for {} makes this a {}", error.expected(), config.remade_by, config.model_type),
          error.actual()};
}

}  // namespace

LayerWeights load_layer_weights(const std::filesystem::path& folder, const ModelConfig& config, std::int64_t layer,
                                std::int64_t rank, DType compute) {
  if (compute != DType::float32 && compute != DType::bfloat16) {
    throw Error("compute", "float32 or bfloat16", std::string(name_of(compute)));
  }
  if (rank < 0 || rank >= config.tp) {
    throw Error("rank", fmt::format("a rank in [0, {})", config.tp), std::to_string(rank));
  }
  const std::vector<WeightSpec> specs = layer::weight_specs(config, layer, compute);
  LayerWeights weights;
  if (layer::has_indexer(config, layer)) {
    weights.indexer.emplace();
  }
  LayerReader reader(folder, config, layer, rank);
  for (const WeightSpec& spec : specs) {
    try {
      spec.of(weights) = reader.read(spec);
    } catch (const Error& error) {
      if (config.remade_by.empty() || spec.in_indexer == nullptr || error.kind() != ErrorKind::misuse) {
        throw;
      }
      throw with_reason(error, config);
    }
  }
  weights.sink = reader.read_sink(config.geometry.num_heads);
  return weights;
}

}  // namespace headrace
