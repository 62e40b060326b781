// SPDX-License-Identifier: Apache-2.0
#include "io/float_rows.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "core/e4m3.h"
#include "headrace/error.h"

namespace headrace::io {
namespace {

constexpr std::int64_t kBlock = 128;

// Without a sum that overflows: beside a dimension of 0 a file may claim any other.
std::int64_t blocks(std::int64_t n) { return n / kBlock + (n % kBlock != 0 ? 1 : 0); }

// Copied, for the source may lie at any address.
template <class T>
T element(const std::byte* source, std::size_t i) {
  T value;
  std::memcpy(&value, source + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void convert(const std::byte* source, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(element<T>(source, i));
  }
}

void convert_e4m3(const std::byte* source, std::span<float> out) {
  const E4m3Table& decode = E4m3Table::get();
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = decode(source[i]);
  }
}

void convert_scales(const StoredTensor& scales, std::span<float> out) {
  switch (scales.dtype) {
    case DType::float32:
      return convert<float>(scales.bytes.data(), out);
    case DType::bfloat16:
      return convert<bfloat16>(scales.bytes.data(), out);
    case DType::float16:
      return convert<float16>(scales.bytes.data(), out);
    case DType::float8_e8m0:
      return convert<float8_e8m0>(scales.bytes.data(), out);
    default:
      throw Error(scales.name, fmt::format("scales of {}", kScaleTypes), std::string(name_of(scales.dtype)));
  }
}

}  // namespace

std::vector<float> block_scales(const StoredTensor& scales, std::int64_t rows, std::int64_t columns) {
  const std::vector<std::int64_t> shape{blocks(rows), blocks(columns)};
  if (scales.shape != shape) {
    throw Error(scales.name, fmt::format("a scale for each block of 128 x 128, shape {}", shape_to_string(shape)),
                "shape " + shape_to_string(scales.shape));
  }
  std::vector<float> values(static_cast<std::size_t>(shape[0] * shape[1]));
  convert_scales(scales, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i]) || values[i] <= 0.0F) {
      const auto block = static_cast<std::int64_t>(i);
      throw Error(fmt::format("{}[{}, {}]", scales.name, block / shape[1], block % shape[1]),
                  "a scale that is finite and > 0", fmt::format("{}", values[i]));
    }
  }
  return values;
}

FloatRows::FloatRows(StoredTensor tensor, const std::optional<StoredTensor>& scales) : tensor_(std::move(tensor)) {
  if (tensor_.shape.empty() || tensor_.shape.size() > 2) {
    throw Error(tensor_.name, "a vector or a matrix", "shape " + shape_to_string(tensor_.shape));
  }
  columns_ = tensor_.shape.back();
  switch (tensor_.dtype) {
    case DType::float32:
    case DType::bfloat16:
    case DType::float16:
      return;
    case DType::float8_e4m3:
      if (tensor_.shape.size() != 2) {
        throw Error(tensor_.name, fmt::format("a vector of {}", kVectorTypes), "F8_E4M3");
      }
      if (!scales) {
        throw Error(tensor_.name + "_scale_inv", "the block scales of an F8_E4M3 tensor, under this name or NAME_scale",
                    "nothing");
      }
      block_columns_ = blocks(columns_);
      scales_ = block_scales(*scales, tensor_.shape[0], columns_);
      return;
    default:
      throw Error(tensor_.name, std::string(tensor_.shape.size() == 2 ? kMatrixTypes : kVectorTypes),
                  std::string(name_of(tensor_.dtype)));
  }
}

void FloatRows::read(std::int64_t row, std::int64_t column, std::span<float> out) const {
  const std::byte* source = tensor_.bytes.data() + (row * columns_ + column) * size_of(tensor_.dtype);
  switch (tensor_.dtype) {
    case DType::float32:
      return convert<float>(source, out);
    case DType::bfloat16:
      return convert<bfloat16>(source, out);
    case DType::float16:
      return convert<float16>(source, out);
    default:
      convert_e4m3(source, out);
  }
  const float* scales = scales_.data() + row / kBlock * block_columns_;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] *= scales[(column + static_cast<std::int64_t>(i)) / kBlock];
  }
}

}  // namespace headrace::io
