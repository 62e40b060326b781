// SPDX-License-Identifier: Apache-2.0
#include "device/parallel.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>

namespace headrace::device {

int thread_count(int requested) noexcept { return requested > 0 ? requested : std::max(1, omp_get_num_procs()); }

void parallel_for(std::int64_t n, int threads, const std::function<void(std::int64_t, int)>& body) {
  const int team = static_cast<int>(std::min<std::int64_t>(thread_count(threads), std::max<std::int64_t>(n, 1)));
  if (team == 1) {
    for (std::int64_t i = 0; i < n; ++i) {
      body(i, 0);
    }
    return;
  }
  std::exception_ptr first;
  std::atomic<bool> failed = false;
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
  for (std::int64_t i = 0; i < n; ++i) {
    if (failed.load(std::memory_order_relaxed)) {
      continue;
    }
    try {
      body(i, omp_get_thread_num());
    } catch (...) {
#pragma omp critical
      {
        if (!first) {
          first = std::current_exception();
        }
      }
      failed.store(true, std::memory_order_relaxed);
    }
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace headrace::device
