// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "emulator/block.h"
#include "emulator/fault.h"

/// CuTe's ldmatrix, for the emulator.
namespace cute {

using uint128_t = unsigned __int128;

/// Lane l names row l % 8 of matrix l / 8; of each matrix, lane l gets two values of row l / 4.
struct SM75_U32x4_LDSM_N {
  static void copy(const uint128_t& row, std::uint32_t& a, std::uint32_t& b, std::uint32_t& c, std::uint32_t& d) {
    struct Words {
      std::uint32_t word[4];
    };
    const void* own = &row;
    if (reinterpret_cast<std::uintptr_t>(own) % sizeof(row) != 0) {
      throw headrace::emulator::Fault("ldmatrix from an address that is not aligned");
    }
    Words words{};
    headrace::emulator::this_block().warp().meet(
        "ldmatrix", headrace::emulator::this_fiber() % 32, own, words, [](const auto& rows, const auto& outs) {
          for (std::size_t lane = 0; lane < outs.size(); ++lane) {
            for (std::size_t matrix = 0; matrix < 4; ++matrix) {
              const auto* from = static_cast<const std::byte*>(*rows[matrix * 8 + lane / 4]);
              std::memcpy(&outs[lane]->word[matrix], from + lane % 4 * 4, 4);
            }
          }
        });
    a = words.word[0];
    b = words.word[1];
    c = words.word[2];
    d = words.word[3];
  }
};

}  // namespace cute
