// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/stream.h"

namespace headrace::device::cuda {

/// Time between two points of a stream, by the device's own clock.
class Timer {
 public:
  Timer();
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void start(Stream stream) const;
  void stop(Stream stream) const;
  /// From start to stop; waits for the latter.
  [[nodiscard]] double milliseconds() const;

 private:
  void* start_ = nullptr;
  void* stop_ = nullptr;
};

}  // namespace headrace::device::cuda
