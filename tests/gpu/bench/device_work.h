// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/cuda/stream.h"

namespace headrace::bench {

/// Queues a kernel that does nothing for so long, on one multiprocessor.
void occupy(Stream stream, double milliseconds);

/// Memory of the current device that nobody has.
[[nodiscard]] std::int64_t free_bytes();

}  // namespace headrace::bench
