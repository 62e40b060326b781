// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace headrace::device::cuda {

/// What a GPU is and has: what requirements, tile counts and a profile's name are derived from.
struct Capability {
  std::string name;
  int major = 0;  ///< compute capability
  int minor = 0;
  int multiprocessors = 0;
  std::int64_t shared_bytes_a_block = 0;  ///< at most, when a kernel asks for it
  std::int64_t shared_bytes_a_multiprocessor = 0;
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;
  int driver_version = 0;   ///< the CUDA version the driver supports: 13000 for 13.0
  int runtime_version = 0;  ///< the CUDA version of the runtime in this program

  /// Whether the kernels for sm_90a run on it. No later GPU runs them.
  [[nodiscard]] bool is_sm90() const noexcept { return major == 9 && minor == 0; }
};

/// GPUs that can be used; 0 where there is no GPU or no driver.
[[nodiscard]] int device_count() noexcept;

/// @param ordinal  in [0, device_count()). @throws Error
[[nodiscard]] Capability probe(int ordinal);

/// Makes a GPU the calling thread's current one, which buffers, streams and launches refer to. @throws Error
void make_current(int ordinal);

}  // namespace headrace::device::cuda
