// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headrace::device::cuda {

/// The calling thread's current GPU. @throws Error when CUDA reports an error
[[nodiscard]] int current_device();

/// Makes a GPU the calling thread's current one for as long as it lives, and then the one that was before. Every public
/// function that calls CUDA has one, so that none changes what is the caller's.
class CurrentDevice {
 public:
  /// @throws Error when CUDA reports an error
  explicit CurrentDevice(int ordinal);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace headrace::device::cuda
