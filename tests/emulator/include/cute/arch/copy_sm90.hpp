// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "emulator/block.h"
#include "emulator/fault.h"

/// CuTe's stmatrix, for the emulator.
namespace cute {

using uint128_t = unsigned __int128;

/// Lane l names row l % 8 of matrix l / 8; of each matrix, lane l has two values of row l / 4.
struct SM90_U32x4_STSM_N {
  static void copy(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d, uint128_t& row) {
    struct Lane {
      void* row;
      std::uint32_t word[4];
    };
    const Lane own{&row, {a, b, c, d}};
    if (reinterpret_cast<std::uintptr_t>(own.row) % sizeof(row) != 0) {
      throw headrace::emulator::Fault("stmatrix to an address that is not aligned");
    }
    int nothing = 0;
    headrace::emulator::this_block().warp().meet(
        "stmatrix", headrace::emulator::this_fiber() % 32, own, nothing, [](const auto& lanes, const auto& /*outs*/) {
          for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
            for (std::size_t matrix = 0; matrix < 4; ++matrix) {
              auto* to = static_cast<std::byte*>(lanes[matrix * 8 + lane / 4]->row);
              std::memcpy(to + lane % 4 * 4, &lanes[lane]->word[matrix], 4);
            }
          }
        });
  }
};

}  // namespace cute
