// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "emulator/block.h"

/// CUTLASS's asynchronous copies, for the emulator.
namespace cutlass::arch {

struct CacheOperation {
  enum Kind { Always, Global };
};

/// Copies kBytes, or fills them with zeros and reads nothing.
template <int kBytes, CacheOperation::Kind>
struct cp_async_zfill {
  cp_async_zfill(void* to, const void* from, bool reads) {
    headrace::emulator::Block& block = headrace::emulator::this_block();
    block.copies().start(
        headrace::emulator::this_fiber(),
        {block.shared(block.shared_offset(to), kBytes), reads ? static_cast<const std::byte*>(from) : nullptr, kBytes});
  }
};

template <int kBytes, CacheOperation::Kind kOperation>
struct cp_async {
  cp_async(void* to, const void* from) { cp_async_zfill<kBytes, kOperation>(to, from, true); }
};

}  // namespace cutlass::arch
