// SPDX-License-Identifier: Apache-2.0
#include "support/output_buffer.h"

#include <bit>
#include <cstring>

namespace headrace::test {
namespace {

constexpr std::int64_t kGuard = 37;  // elements before and after, odd so that nothing is aligned by luck
constexpr std::byte kPattern{0xa5};
constexpr std::uint32_t kPatternWord = 0xa5a5a5a5U;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

OutputBuffer::OutputBuffer(std::int64_t tokens, std::int64_t heads, std::int64_t dim, DType dtype, std::int64_t gap,
                           bool with_lse)
    : tokens_(tokens),
      heads_(heads),
      dim_(dim),
      dtype_(dtype),
      gap_(gap),
      with_lse_(with_lse),
      out_(at((2 * kGuard + tokens * (heads * (dim + gap) + gap)) * size_of(dtype)), kPattern),
      lse_(at(2 * kGuard + tokens * (heads + gap)), std::bit_cast<float>(kPatternWord)) {}

std::int64_t OutputBuffer::element(std::int64_t token, std::int64_t head, std::int64_t i) const {
  return kGuard + token * (heads_ * (dim_ + gap_) + gap_) + head * (dim_ + gap_) + i;
}

Outputs OutputBuffer::outputs() {
  Outputs result;
  result.out = AnyView(out_.data() + kGuard * size_of(dtype_), dtype_, 3, {tokens_, heads_, dim_, 0},
                       {heads_ * (dim_ + gap_) + gap_, dim_ + gap_, 1, 0});
  if (with_lse_) {
    result.lse = View<float>(lse_.data() + kGuard, 2, {tokens_, heads_, 0, 0}, {heads_ + gap_, 1, 0, 0});
  }
  return result;
}

double OutputBuffer::out(std::int64_t token, std::int64_t head, std::int64_t i) const {
  const std::byte* from = out_.data() + element(token, head, i) * size_of(dtype_);
  if (dtype_ == DType::bfloat16) {
    bfloat16 value;
    std::memcpy(&value, from, sizeof value);
    return static_cast<double>(static_cast<float>(value));
  }
  float value = 0.0F;
  std::memcpy(&value, from, sizeof value);
  return static_cast<double>(value);
}

float OutputBuffer::lse(std::int64_t token, std::int64_t head) const {
  return lse_[at(kGuard + token * (heads_ + gap_) + head)];
}

std::optional<std::string> OutputBuffer::damage() const {
  std::vector<bool> written(out_.size());
  std::vector<bool> lse_written(lse_.size());
  for (std::int64_t token = 0; token < tokens_; ++token) {
    for (std::int64_t head = 0; head < heads_; ++head) {
      lse_written[at(kGuard + token * (heads_ + gap_) + head)] = with_lse_;
      for (std::int64_t byte = 0; byte < dim_ * size_of(dtype_); ++byte) {
        written[at(element(token, head, 0) * size_of(dtype_) + byte)] = true;
      }
    }
  }
  for (std::size_t i = 0; i < out_.size(); ++i) {
    if (!written[i] && out_[i] != kPattern) {
      return "byte " + std::to_string(i) + " of the memory around `out` was overwritten";
    }
  }
  for (std::size_t i = 0; i < lse_.size(); ++i) {
    if (!lse_written[i] && std::bit_cast<std::uint32_t>(lse_[i]) != kPatternWord) {
      return "element " + std::to_string(i) + " of the memory around `lse` was overwritten";
    }
  }
  return std::nullopt;
}

std::vector<std::uint32_t> OutputBuffer::bits(std::int64_t begin, std::int64_t end) const {
  std::vector<std::uint32_t> result;
  for (std::int64_t token = begin; token < end; ++token) {
    for (std::int64_t head = 0; head < heads_; ++head) {
      for (std::int64_t i = 0; i < dim_; ++i) {
        result.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(out(token, head, i))));
      }
      result.push_back(std::bit_cast<std::uint32_t>(lse(token, head)));
    }
  }
  return result;
}

}  // namespace headrace::test
