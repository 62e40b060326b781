// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "emulator/block.h"

/// CUTLASS's barriers, for the emulator. What a ClusterBarrier announces was written through the generic proxy, so that
/// whoever waited for it needs a fence before a product.
namespace cutlass::arch {

struct ClusterBarrier {
  static void init(std::uint64_t* memory, std::uint32_t arrivals) {
    headrace::emulator::SharedBarrier::init(memory, arrivals);
  }
  static void wait(std::uint64_t* memory, std::uint32_t parity) {
    headrace::emulator::SharedBarrier(memory).wait(parity);
    headrace::emulator::this_block().products().learn(headrace::emulator::this_fiber());
  }
  static void arrive(std::uint64_t* memory) { headrace::emulator::SharedBarrier(memory).arrive(); }
};

struct NamedBarrier {
  static void sync(std::uint32_t threads, std::uint32_t id) {
    headrace::emulator::this_block().named_barrier(id).sync(threads, id);
  }
  static void arrive(std::uint32_t threads, std::uint32_t id) {
    headrace::emulator::this_block().named_barrier(id).arrive(threads, id);
  }
};

inline void fence_barrier_init() {}
inline void fence_view_async_shared() {
  headrace::emulator::this_block().products().fence_proxy(headrace::emulator::this_fiber());
}

inline void cpasync_barrier_arrive_noinc(std::uint64_t* barrier) {
  headrace::emulator::this_block().copies().arrive_after(headrace::emulator::this_fiber(), barrier);
}

}  // namespace cutlass::arch
