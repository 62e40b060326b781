// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headrace/cuda.h"

namespace headrace::device::cuda {

/// Waits for everything queued so far. @throws Error when some of it failed
void synchronize(Stream stream);

/// A stream of one's own on the current device, which does not wait for the default stream.
class OwnedStream {
 public:
  OwnedStream();
  ~OwnedStream();
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;

  [[nodiscard]] Stream get() const noexcept { return stream_; }
  operator Stream() const noexcept { return stream_; }  // NOLINT(google-explicit-constructor)

 private:
  Stream stream_;
};

}  // namespace headrace::device::cuda
