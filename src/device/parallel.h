// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace headrace::device {

/// `requested`, or the machine's processor count when it is 0.
[[nodiscard]] int thread_count(int requested) noexcept;

/// Calls body(i, thread) for every i in [0, n), on up to `threads` threads, thread in [0, threads). Indices are handed
/// out one by one, in order. The first exception thrown by a body is thrown here after all threads have stopped.
void parallel_for(std::int64_t n, int threads, const std::function<void(std::int64_t, int)>& body);

}  // namespace headrace::device
