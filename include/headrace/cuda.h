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

/// A GPU, and what the library keeps for it: the handle and the algorithms of matrix products, and which kernels are
/// loaded. None of that is memory of the GPU that a call writes to: plans, threads and streams share it freely. The
/// calling thread's current device is the same after every function of the library as before it.
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

  /// Chooses the product algorithms of an attention, loads every kernel it may take, those of the cache and of an
  /// indexer among them, and waits. Without it the first plan of a geometry does so. Afterwards planning, uploads and
  /// calls allocate no memory of the GPU and wait for nothing.
  void warm_up(const Attention& attention);

  /// For the library's own use.
  struct State;
  [[nodiscard]] State& state() const noexcept { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// `append` (headrace/cache.h) on a GPU: the same bytes from the same values. Every view is on its memory. Queues work
/// on `stream` and returns: allocates nothing, waits for nothing, and can be captured in a CUDA graph. The host does
/// not see the slots: one outside [0, num_slots()) is skipped, as -1 is.
/// @param latent    [T, R] float32 or bfloat16, with contiguous rows
/// @param rope_key  [T, rope] likewise
/// @param device    the GPU that `stream` is of
/// @throws Error for shapes, dtypes and strides that do not suit, or where CUDA reports an error
HEADRACE_EXPORT void append(const Geometry& geometry, CacheFormat format, const MutableCacheView& cache,
                            ConstAnyView latent, ConstAnyView rope_key, View<const std::int64_t> slot_mapping,
                            const CudaDevice& device, Stream stream);

/// Queues the writing of a plan's tables, which its kernels read, to memory of the caller on the plan's GPU. They
/// travel as arguments of kernels: nothing on the host is read after the call, so that the plan may be dropped, remade
/// or uploaded elsewhere at once; nothing is allocated or waited for. Captured in a CUDA graph, the tables are part of
/// the graph. `attend` needs them, on this stream or on one that waits for it, as long as its work may run.
/// @param tables  of at least plan.table_bytes(), at an address divisible by 16; what lies behind them stays as it is
/// @throws Error for a plan of the processor, too little memory, or where CUDA reports an error
HEADRACE_EXPORT void upload(Plan& plan, std::span<std::byte> tables, Stream stream);

/// `attend` for a plan made with Limits.device.cuda, whose tables were uploaded. Every view is on that GPU's memory, in
/// bfloat16. Queues work on `stream` and returns: allocates nothing, waits for nothing (HEADRACE_VERBOSE=2 in the
/// environment alone makes it wait, for times), and can be captured in a CUDA graph, which then needs the memory of
/// tables, workspace and views, but not the plan. Lengths, block table and selection are read on the GPU when the work
/// runs; what lies outside the plan's bounds, the cache or a request is ignored as the contract says: whatever they
/// hold, nothing outside the views is read or written. q may have more rows than the requests have tokens; the rows of
/// `out` beyond those then hold anything.
/// @param workspace  of at least plan.workspace_bytes(), on the GPU, aligned to 256 bytes; one serves every layer of a
///                   stream, and calls that may run at once take one each
/// @throws Error when the plan's tables were not uploaded, a view's shape, dtype or stride does not suit the plan, or
/// CUDA reports an error
HEADRACE_EXPORT void attend(const Plan& plan, const Weights& weights, const Inputs& inputs, const Outputs& outputs,
                            std::span<std::byte> workspace, Stream stream);

}  // namespace headrace
