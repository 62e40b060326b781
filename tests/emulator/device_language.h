// SPDX-License-Identifier: Apache-2.0
#pragma once

// Included before everything else where a .cu file is compiled as C++: the words and functions of device code that the
// toolkit's headers give to nvcc alone.

/// All of a program's variables of shared memory lie in one section, which a block fills with NaN before it begins.
/// They exist once, as blocks run one after the other.
#define __shared__ static __attribute__((section("emulated_shared")))
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <math.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulator/block.h"
#include "emulator/fault.h"

// ---- who a thread is ------------------------------------------------------------------------------------------------

namespace headrace::emulator {

inline Triple thread_index() { return {static_cast<unsigned>(this_fiber()), 0, 0}; }
inline int lane() { return this_fiber() % kWarpThreads; }

}  // namespace headrace::emulator

#define threadIdx (::headrace::emulator::thread_index())
#define blockIdx (::headrace::emulator::this_block().index())
#define blockDim (::headrace::emulator::this_block().threads())
#define gridDim (::headrace::emulator::this_block().grid())

// ---- what threads do together ---------------------------------------------------------------------------------------

inline void __syncthreads() { headrace::emulator::this_block().barrier().wait(0); }
inline int __syncthreads_or(int predicate) { return headrace::emulator::this_block().barrier().wait(predicate); }

namespace headrace::emulator {

inline void expect_whole_warp(unsigned mask) {
  if (mask != ~0U) {
    throw Fault("parts of warps are not modelled");
  }
}

/// Gives each lane what lane source(lane) has.
template <class T, class Source>
T exchange(const char* name, unsigned mask, T value, const Source& source) {
  struct Offer {
    T value;
    int source;
  };
  expect_whole_warp(mask);
  const Offer own{value, source(lane())};
  T result{};
  this_block().warp().meet(name, lane(), own, result, [&](const auto& ins, const auto& outs) {
    for (std::size_t i = 0; i < outs.size(); ++i) {
      if (outs[i] == nullptr) {
        continue;
      }
      const Offer* from = ins[static_cast<std::size_t>(ins[i]->source) % ins.size()];
      if (from == nullptr) {
        throw Fault(std::string(name) + " from a lane that has returned");
      }
      *outs[i] = from->value;
    }
  });
  return result;
}

}  // namespace headrace::emulator

inline void __syncwarp(unsigned mask = ~0U) {
  headrace::emulator::expect_whole_warp(mask);
  int none = 0;
  headrace::emulator::this_block().warp().meet("__syncwarp", headrace::emulator::lane(), none, none,
                                               [](const auto&, const auto&) {});
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source) {
  return headrace::emulator::exchange("__shfl_sync", mask, value, [&](int) { return source; });
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return headrace::emulator::exchange("__shfl_xor_sync", mask, value, [&](int lane) { return lane ^ bits; });
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance) {
  const auto source = [&](int lane) {
    return lane < static_cast<int>(distance) ? lane : lane - static_cast<int>(distance);
  };
  return headrace::emulator::exchange("__shfl_up_sync", mask, value, source);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  headrace::emulator::expect_whole_warp(mask);
  unsigned result = 0;
  headrace::emulator::this_block().warp().meet("__ballot_sync", headrace::emulator::lane(), predicate, result,
                                               [](const auto& ins, const auto& outs) {
                                                 unsigned bits = 0;
                                                 for (std::size_t i = 0; i < ins.size(); ++i) {
                                                   bits |= ins[i] != nullptr && *ins[i] != 0 ? 1U << i : 0U;
                                                 }
                                                 for (unsigned* out : outs) {
                                                   if (out != nullptr) {
                                                     *out = bits;
                                                   }
                                                 }
                                               });
  return result;
}
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate == 0 ? 1 : 0) == 0 ? 1 : 0; }

// ---- memory ---------------------------------------------------------------------------------------------------------

template <class T>
T __ldg(const T* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % alignof(T) != 0) {
    throw headrace::emulator::Fault("__ldg from an address that is not aligned");
  }
  return *address;
}

// Nothing comes between a fiber's turns: plain operations are atomic.

template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  const T before = *address;
  *address = before + value;
  return before;
}
template <class T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  const T before = *address;
  *address = before | value;
  return before;
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  const T before = *address;
  *address = before < value ? before : value;
  return before;
}
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  const T before = *address;
  *address = before == expected ? value : before;
  return before;
}

// ---- arithmetic -----------------------------------------------------------------------------------------------------

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using Common = std::common_type_t<A, B>;
  return static_cast<Common>(a) < static_cast<Common>(b) ? static_cast<Common>(a) : static_cast<Common>(b);
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using Common = std::common_type_t<A, B>;
  return static_cast<Common>(a) < static_cast<Common>(b) ? static_cast<Common>(b) : static_cast<Common>(a);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32);
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(high) << 32 | low;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7U) & 0xffU) << 8 * i;
  }
  return result;
}
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }

// ---- attributes of kernels ------------------------------------------------------------------------------------------

template <class... Params>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(Params...)) {
  return ::cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
template <class... Params>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute attribute, int value) {
  return ::cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
