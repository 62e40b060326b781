// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "emulator/block.h"

/// CuTe's products of a warp group, for the emulator: those that the library's kernels use.
namespace cute {

inline std::uint32_t cast_smem_ptr_to_uint(const void* address) {
  return headrace::emulator::this_block().shared_offset(address);
}

inline void warpgroup_arrive() { headrace::emulator::this_block().products().fence(headrace::emulator::this_fiber()); }
inline void warpgroup_commit_batch() {
  headrace::emulator::this_block().products().commit(headrace::emulator::this_fiber());
}
template <int kGroups>
void warpgroup_wait() {
  headrace::emulator::this_block().products().wait(headrace::emulator::this_fiber(), kGroups);
}
template <class T>
void warpgroup_fence_operand(T& /*of the compiler alone*/) {}

namespace SM90::GMMA {

enum class Major { K, MN };
enum class ScaleOut { Zero = 0, One = 1 };

/// 64 x kColumns x 16: accumulators are neighbours in memory, and the last argument is a ScaleOut or left out.
template <int kColumns, Major kRight, class... Accumulators>
void start(headrace::emulator::Product product, std::uint64_t right, float& first, Accumulators&... rest) {
  constexpr std::size_t kScale = sizeof...(rest) - (kColumns / 2 - 1);
  static_assert(kScale <= 1);
  if constexpr (kScale == 1) {
    product.adds = std::get<sizeof...(rest) - 1>(std::tie(rest...)) == ScaleOut::One;
  }
  product.columns = kColumns;
  product.right = headrace::emulator::SharedMatrix(right);
  product.right_is_mn_major = kRight == Major::MN;
  product.accumulators = &first;
  headrace::emulator::this_block().products().start(headrace::emulator::this_fiber(), product);
}

template <int kColumns, Major kLeft, Major kRight>
struct SharedByShared {
  static_assert(kLeft == Major::K);
  template <class... Accumulators>
  static void fma(const std::uint64_t& left, const std::uint64_t& right, Accumulators&&... accumulators) {
    headrace::emulator::Product product;
    product.left = headrace::emulator::SharedMatrix(left);
    start<kColumns, kRight>(product, right, accumulators...);
  }
};

template <int kColumns, Major kLeft, Major kRight>
struct RegistersByShared {
  static_assert(kLeft == Major::K);
  template <class... Accumulators>
  static void fma(const std::uint32_t& a0, const std::uint32_t& a1, const std::uint32_t& a2, const std::uint32_t& a3,
                  const std::uint64_t& right, Accumulators&&... accumulators) {
    const std::array<const std::uint32_t*, 4> own{&a0, &a1, &a2, &a3};
    headrace::emulator::Product product;
    product.from_registers = true;
    headrace::emulator::this_block().warp().meet("wgmma with registers", headrace::emulator::this_fiber() % 32, own,
                                                 product.registers, [](const auto& lanes, const auto& quads) {
                                                   for (std::size_t lane = 0; lane < quads.size(); ++lane) {
                                                     for (std::size_t q = 0; q < 4; ++q) {
                                                       (*quads[lane])[q] = *lanes[lane / 4 * 4 + q];
                                                     }
                                                   }
                                                 });
    start<kColumns, kRight>(product, right, accumulators...);
  }
};

template <Major kLeft, Major kRight>
using MMA_64x64x16_F32BF16BF16_SS = SharedByShared<64, kLeft, kRight>;
template <Major kLeft, Major kRight>
using MMA_64x256x16_F32BF16BF16_SS = SharedByShared<256, kLeft, kRight>;
template <Major kLeft, Major kRight>
using MMA_64x256x16_F32BF16BF16_RS = RegistersByShared<256, kLeft, kRight>;

}  // namespace SM90::GMMA
}  // namespace cute
