// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "emulator/block.h"

/// CuTe's product of a warp, for the emulator.
namespace cute {

/// D = A B + C: A is 16 x 16, B 16 x 8. With g = lane / 4 and t = lane % 4, a lane holds columns 2 t and 2 t + 1 of A's
/// rows g and g + 8, and the same 8 columns further; of B column g, likewise; of C and D columns 2 t and 2 t + 1 of
/// rows g and g + 8.
struct SM80_16x8x16_F32BF16BF16F32_TN {
  static void fma(float& d0, float& d1, float& d2, float& d3, const std::uint32_t& a0, const std::uint32_t& a1,
                  const std::uint32_t& a2, const std::uint32_t& a3, const std::uint32_t& b0, const std::uint32_t& b1,
                  const float& c0, const float& c1, const float& c2, const float& c3) {
    const Operands own{{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}};
    Result result{};
    headrace::emulator::this_block().warp().meet("mma", headrace::emulator::this_fiber() % 32, own, result,
                                                 [](const auto& ins, const auto& outs) { multiply(ins, outs); });
    d0 = result.d[0];
    d1 = result.d[1];
    d2 = result.d[2];
    d3 = result.d[3];
  }

 private:
  static constexpr std::size_t kRows = 16;
  static constexpr std::size_t kColumns = 8;
  static constexpr std::size_t kDepth = 16;

  struct Operands {
    std::uint32_t a[4];
    std::uint32_t b[2];
    float c[4];
  };
  struct Result {
    float d[4];
  };

  static float value(std::uint32_t pair, std::size_t k) {
    return std::bit_cast<float>(k % 2 == 0 ? pair << 16 : pair & 0xffff0000U);
  }

  template <class Lanes, class Results>
  static void multiply(const Lanes& lanes, const Results& results) {
    float a[kRows][kDepth];
    float b[kDepth][kColumns];
    for (std::size_t k = 0; k < kDepth; ++k) {
      const std::size_t t = k % 8 / 2;
      for (std::size_t row = 0; row < kRows; ++row) {
        a[row][k] = value(lanes[row % 8 * 4 + t]->a[row / 8 + k / 8 * 2], k);
      }
      for (std::size_t column = 0; column < kColumns; ++column) {
        b[k][column] = value(lanes[column * 4 + t]->b[k / 8], k);
      }
    }
    for (std::size_t row = 0; row < kRows; ++row) {
      float sums[kColumns] = {};
      for (std::size_t k = 0; k < kDepth; ++k) {
        for (std::size_t column = 0; column < kColumns; ++column) {
          sums[column] += a[row][k] * b[k][column];
        }
      }
      for (std::size_t column = 0; column < kColumns; ++column) {
        const std::size_t lane = row % 8 * 4 + column / 2;
        const std::size_t i = row / 8 * 2 + column % 2;
        results[lane]->d[i] = lanes[lane]->c[i] + sums[column];
      }
    }
  }
};

}  // namespace cute
