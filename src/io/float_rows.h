// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "io/safetensors.h"

namespace headrace::io {

/// What weights and their scales may be stored in, as errors list it.
inline constexpr std::string_view kMatrixTypes = "F32, BF16, F16 or F8_E4M3";
inline constexpr std::string_view kVectorTypes = "F32, BF16 or F16";
inline constexpr std::string_view kScaleTypes = "F32, BF16, F16 or F8_E8M0";

/// The scales of a matrix of F8_E4M3, one for each block of 128 x 128: [ceil(rows / 128), ceil(columns / 128)] of F32,
/// BF16, F16 or F8_E8M0, row by row. They are told by that shape: one scale for the tensor, or one a row, is refused.
/// @throws Error naming the scales for another shape or dtype, and for one that is not finite and > 0
[[nodiscard]] std::vector<float> block_scales(const StoredTensor& scales, std::int64_t rows, std::int64_t columns);

/// A stored matrix, or a vector as one row, read as float32: F32, BF16, F16, or a matrix of F8_E4M3 with a scale for
/// each block of 128 x 128, as DeepSeek publishes (value = e4m3 * scale).
class FloatRows {
 public:
  /// @param scales  as block_scales() takes them; needed for F8_E4M3 and read for nothing else
  /// @throws Error for other dtypes, for missing scales, and as block_scales() does
  explicit FloatRows(StoredTensor tensor, const std::optional<StoredTensor>& scales = std::nullopt);

  /// out.size() values of a row, from `column` on; they must lie inside the matrix.
  void read(std::int64_t row, std::int64_t column, std::span<float> out) const;

 private:
  StoredTensor tensor_;
  std::int64_t columns_ = 0;
  std::int64_t block_columns_ = 0;
  std::vector<float> scales_;  // empty where the dtype needs none
};

}  // namespace headrace::io
