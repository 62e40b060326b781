// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace headrace::app {

/// Runs `work` and adds the milliseconds it took to `total_ms`; returns what `work` returns.
template <class Work>
auto timed(double& total_ms, const Work& work) {
  struct Add {
    explicit Add(double& total) : total_ms(total) {}
    ~Add() { total_ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count(); }
    Add(const Add&) = delete;
    Add& operator=(const Add&) = delete;

    double& total_ms;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  };
  const Add add(total_ms);
  return work();
}

}  // namespace headrace::app
