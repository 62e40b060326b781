// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "device/cuda/timer.h"

namespace headrace::bench {

/// Times work on a stream: medians, each run with none of its data in the L2 cache.
class Bench {
 public:
  Bench() : flush_(kFlushBytes) {
    fmt::print("{:<56} {:>9} {:>9} {:>9}  {}\n", "what", "median us", "lowest", "rate", "");
  }

  [[nodiscard]] Stream stream() const { return stream_; }

  /// @param bytes  that have to move, or 0
  /// @param flops  that have to be done, or 0
  /// @return the median in microseconds
  double time(const std::string& what, double bytes, double flops, const std::function<void(Stream)>& work) const {
    work(stream_);
    std::vector<double> us;
    for (int i = 0; i < kRepetitions; ++i) {
      flush_.fill(std::byte{1});
      timer_.start(stream_);
      work(stream_);
      timer_.stop(stream_);
      us.push_back(1e3 * timer_.milliseconds());
    }
    std::sort(us.begin(), us.end());
    const double median = us[us.size() / 2];
    const std::string rate = flops > 0.0 ? fmt::format("{:9.1f}  TFLOP/s", flops / median / 1e6)
                                         : fmt::format("{:9.1f}  GB/s", bytes / median / 1e3);
    fmt::print("{:<56} {:>9.1f} {:>9.1f} {}\n", what, median, us.front(), rate);
    std::fflush(stdout);
    return median;
  }

 private:
  static constexpr int kRepetitions = 20;
  static constexpr std::int64_t kFlushBytes = std::int64_t{256} << 20;  // several times the L2 cache

  device::cuda::OwnedStream stream_;
  device::cuda::Timer timer_;
  device::cuda::DeviceBuffer flush_;
};

/// attend from query and paged cache to output, on the shapes of the project's targets; false where a result is wrong.
bool bench_attend(const Bench& bench);

/// What a step takes of the host: plan, upload, attend.
void bench_host();

/// Union lists and the top-k MQA kernel, on the shapes of the project's targets.
void bench_topk(const Bench& bench);

}  // namespace headrace::bench
