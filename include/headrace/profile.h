// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "headrace/dtype.h"
#include "headrace/export.h"

namespace headrace {

/// Rates of a device, from which times are predicted: measured, or assumed ("nominal"). Each is of one thread in one
/// compute dtype; the bandwidth is of all threads together.
struct HEADRACE_EXPORT Profile {
  std::string name;  ///< what was measured: "nominal", or the processor and the instruction set in use
  DType compute = DType::bfloat16;
  int threads = 1;                ///< that ran when it was measured
  double product_gflops = 0.0;    ///< up-projection and absorption
  double mha_gflops = 0.0;        ///< attention over up-projected keys
  double mqa_gflops = 0.0;        ///< attention over gathered latents, without the gathering
  double gather_mkeys = 0.0;      ///< latents of 512 values gathered from the cache, 1e6 a second
  double mask_gkeys = 0.0;        ///< selection entries read and mask words written, 1e9 a second
  double bandwidth_gbytes = 0.0;  ///< of memory, 1e9 bytes a second

  /// What the library assumes of a CPU that was not measured.
  [[nodiscard]] static Profile nominal_cpu(DType compute);
  /// What the library assumes of an sm_90 GPU, which counts as one thread: about what was measured on an H200
  /// (docs/performance.md).
  [[nodiscard]] static Profile nominal_cuda();
  /// Throws Error unless every rate is finite and > 0.
  void validate() const;
};

/// Most threads that anything here runs on: more in a call is a mistake, not a machine.
inline constexpr int kMaxThreads = 1024;

/// Measures this machine: runs each path on small problems and solves for the rates, in two or three rounds. Takes some
/// seconds, or twenty on a slow or busy machine. Where rounds do not agree, or a kernel's rate is beyond belief, the
/// result is nominal_cpu, and its name says so.
/// @param threads   in [0, kMaxThreads]; 0: as many as the machine has
/// @param progress  called now and then, from the caller's thread, with the share that is done, rising from 0 to 1
/// @throws Error for a number of threads, or a dtype, that nothing runs in
[[nodiscard]] HEADRACE_EXPORT Profile measure_profile(DType compute, int threads,
                                                      const std::function<void(double share)>& progress = {});

/// Writes a profile as JSON, {"schema": 2, ...}. The file is replaced as a whole or not at all.
/// @throws Error when it cannot be written
HEADRACE_EXPORT void save_profile(const Profile& profile, const std::filesystem::path& file);

/// @throws Error when the file cannot be read, is no profile of schema 2, or has a rate that is not positive
[[nodiscard]] HEADRACE_EXPORT Profile load_profile(const std::filesystem::path& file);

/// The name a measurement on this machine gets: processor and instruction set.
[[nodiscard]] HEADRACE_EXPORT std::string machine_name();

/// Where this machine's profile for a dtype and thread count is kept: in $XDG_CACHE_HOME/headrace, or
/// ~/.cache/headrace. Empty when neither is known.
[[nodiscard]] HEADRACE_EXPORT std::filesystem::path profile_path(DType compute, int threads);

}  // namespace headrace
