// SPDX-License-Identifier: Apache-2.0
#pragma once

/// CUTLASS's setmaxnreg, for the emulator, whose threads have any number of registers.
namespace cutlass::arch {

template <int kRegisters>
void warpgroup_reg_alloc() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}
template <int kRegisters>
void warpgroup_reg_dealloc() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}

}  // namespace cutlass::arch
