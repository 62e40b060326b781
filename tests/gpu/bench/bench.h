// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "device/cuda/timer.h"
#include "measured.h"

namespace headrace::bench {

/// Times work on a stream, each run with none of its data in the L2 cache.
class Bench {
 public:
  Bench() : flush_(kFlushBytes) {
    fmt::print(
        "TFLOP/s of attend: what the result needs, which is the paths' products with\n"
        "kv_b_proj, and the selected pairs of row and key. Of kernel: what it multiplies,\n"
        "every row of a tile with every key of its union, padding included.\n"
        "GB/s: what has to move at least; of lists, the selection's entries. -: no rate.\n"
        "within noise: the ranges between the quartiles meet.\n\n"
        "{:<64} {:>9} {:>19}  {:>15}\n",
        "what", "median us", "quartiles", "rate");
  }

  [[nodiscard]] Stream stream() const { return stream_; }

  /// @param bytes  that have to move, or 0
  /// @param flops  that have to be done, or 0
  /// @return microseconds
  Quartiles time(const std::string& what, double bytes, double flops, const std::function<void(Stream)>& work) const {
    work(stream_);
    std::vector<double> us;
    for (int i = 0; i < kRepetitions; ++i) {
      flush_.fill(std::byte{1});
      timer_.start(stream_);
      work(stream_);
      timer_.stop(stream_);
      us.push_back(1e3 * timer_.milliseconds());
    }
    const Quartiles found = quartiles_of(std::move(us));
    fmt::print("{:<64} {:>9.1f} {:>19}  {:>15}\n", what, found.median,
               fmt::format("{:.1f} - {:.1f}", found.low, found.high), rate_text(bytes, flops, found.median));
    std::fflush(stdout);
    return found;
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
