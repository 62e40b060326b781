// SPDX-License-Identifier: Apache-2.0
#include "selection/topk.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace headrace::selection {
namespace {

/// Maps floats to integers of the same order: the sign bit of positive numbers and all bits of negative ones are
/// flipped. Negative infinity becomes 0x007fffff, which leaves 0 free for NaN.
std::uint32_t rank_of(float score) noexcept {
  if (score != score) {
    return 0;
  }
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);  // -0 + 0 is +0
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

TopK::Entry entry_of(float score, std::int64_t index) noexcept {
  return (static_cast<TopK::Entry>(rank_of(score)) << 32) | (0xffffffffU - static_cast<std::uint32_t>(index));
}

std::int32_t index_of(TopK::Entry entry) noexcept {
  return static_cast<std::int32_t>(0xffffffffU - static_cast<std::uint32_t>(entry));
}

}  // namespace

void TopK::offer(const float* scores, std::int64_t n, std::int64_t first) {
  for (std::int64_t i = 0; i < n; ++i) {
    const Entry entry = entry_of(scores[i], first + i);
    if (entry > threshold_) {
      if (size_ == capacity(k_)) {
        prune();
      }
      entries_[size_++] = entry;
    }
  }
}

// Keeps the k best in the order in which they came, so that nothing has to be sorted at the end.
void TopK::prune() {
  std::copy_n(entries_, size_, scratch_);
  std::nth_element(scratch_, scratch_ + (k_ - 1), scratch_ + size_, std::greater<>());
  threshold_ = scratch_[k_ - 1];
  Entry* const end = std::remove_if(entries_, entries_ + size_, [this](Entry e) { return e < threshold_; });
  size_ = end - entries_;
}

std::int64_t TopK::finish(std::int32_t* indices) {
  if (size_ > k_) {
    prune();
  }
  std::transform(entries_, entries_ + size_, indices, index_of);
  return size_;
}

}  // namespace headrace::selection
