// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

#include "device/cuda/stream.h"

namespace headrace::test {

/// What `work` queues on a stream, captured in the mode that forbids every call that is not safe in a capture, and
/// replayed.
class CapturedGraph {
 public:
  explicit CapturedGraph(const std::function<void(Stream)>& work);
  ~CapturedGraph();
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  /// Runs it and waits for the end.
  void replay() const;
  /// Operations that were queued.
  [[nodiscard]] std::size_t nodes() const noexcept { return nodes_; }

 private:
  device::cuda::OwnedStream stream_;
  void* executable_ = nullptr;
  std::size_t nodes_ = 0;
};

}  // namespace headrace::test
