// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "headrace/attention.h"
#include "headrace/export.h"
#include "headrace/plan.h"

namespace headrace {

/// A queue of a GPU's work that somebody else owns: a cudaStream_t. Null is the default stream.
struct Stream {
  void* handle = nullptr;
};

/// A GPU, and what the library keeps for it: the handle, the algorithms and the workspace of matrix products. Plans
/// made for it share it. Calls that share one must not run on two streams at once.
class HEADRACE_EXPORT CudaDevice {
 public:
  /// GPUs that can be used; 0 where there is none, no driver, or the library was built without CUDA.
  [[nodiscard]] static int count() noexcept;

  /// @param ordinal  in [0, count())
  /// @throws Error when there is no such GPU, or the library was built without CUDA
  explicit CudaDevice(int ordinal = 0);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  [[nodiscard]] int ordinal() const noexcept;
  [[nodiscard]] const std::string& name() const noexcept;
  /// Reasons why the kernels cannot run on it; empty when they can.
  [[nodiscard]] const std::string& unmet() const noexcept;

  /// Chooses the product algorithms of an attention and loads every kernel it may take, and waits. Without it the first
  /// plan and the first `attend` of a geometry do so.
  void warm_up(const Attention& attention);

  /// For the library's own use.
  struct State;
  [[nodiscard]] State& state() const noexcept { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// `attend` for a plan made with Limits.device.cuda. Every view is on that GPU's memory, in bfloat16; it is current
/// when the call is made. Queues work on `stream` and returns: allocates nothing, waits for nothing, and can be
/// captured in a CUDA graph. Lengths, block table and selection are read on the GPU when the work runs; what lies
/// outside the plan's bounds, the cache or a request is ignored as the contract says: whatever they hold, nothing
/// outside the views is read or written. q may have more rows than the requests have tokens; the rows of `out` beyond
/// those then hold anything.
/// @param workspace  of at least plan.workspace_bytes(), on the GPU, aligned to 256 bytes; one serves every layer of a
///                   stream
/// @throws Error when a view's shape, dtype or stride does not suit the plan, or CUDA reports an error
HEADRACE_EXPORT void attend(const Plan& plan, const Weights& weights, const Inputs& inputs, const Outputs& outputs,
                            std::span<std::byte> workspace, Stream stream);

}  // namespace headrace
