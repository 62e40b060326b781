// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "attention/mha/bit_mask.h"

namespace headrace::attention::mqa {

/// Walks the set bits of a mask in ascending order.
class KeyWalk {
 public:
  explicit KeyWalk(std::span<const std::uint64_t> mask) noexcept : mask_(mask) { load(); }

  /// Up to n further positions; returns how many there were.
  std::int64_t next(std::int64_t n, std::int64_t* positions) noexcept {
    std::int64_t count = 0;
    while (count < n && word_ < mask_.size()) {
      if (bits_ == 0) {
        ++word_;
        load();
        continue;
      }
      positions[count++] = static_cast<std::int64_t>(word_) * kMaskKeys + std::countr_zero(bits_);
      bits_ &= bits_ - 1;
    }
    return count;
  }

 private:
  void load() noexcept { bits_ = word_ < mask_.size() ? mask_[word_] : 0; }

  std::span<const std::uint64_t> mask_;
  std::size_t word_ = 0;
  std::uint64_t bits_ = 0;
};

}  // namespace headrace::attention::mqa
