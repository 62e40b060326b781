// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headrace/attention.h"

namespace headrace::test {

/// Memory for one call's outputs: rows and heads apart from each other by `gap` elements, the whole between guards.
/// Everything starts as a pattern, and what lies outside the views must still hold it afterwards.
class OutputBuffer {
 public:
  OutputBuffer(std::int64_t tokens, std::int64_t heads, std::int64_t dim, DType dtype, std::int64_t gap,
               bool with_lse = true);

  [[nodiscard]] Outputs outputs();
  [[nodiscard]] double out(std::int64_t token, std::int64_t head, std::int64_t i) const;
  [[nodiscard]] float lse(std::int64_t token, std::int64_t head) const;
  [[nodiscard]] bool has_lse() const noexcept { return with_lse_; }
  /// Where something outside the views was overwritten, if anywhere.
  [[nodiscard]] std::optional<std::string> damage() const;
  /// The bits of tokens [begin, end): the outputs and the LSE.
  [[nodiscard]] std::vector<std::uint32_t> bits(std::int64_t begin, std::int64_t end) const;
  [[nodiscard]] std::vector<std::uint32_t> bits() const { return bits(0, tokens_); }

 private:
  [[nodiscard]] std::int64_t element(std::int64_t token, std::int64_t head, std::int64_t i) const;

  std::int64_t tokens_;
  std::int64_t heads_;
  std::int64_t dim_;
  DType dtype_;
  std::int64_t gap_;
  bool with_lse_;
  std::vector<std::byte> out_;
  std::vector<float> lse_;
};

}  // namespace headrace::test
