// SPDX-License-Identifier: Apache-2.0
//
// What the library calls of CUDA's runtime, for two GPUs whose memory is the host's. Everything queued on a stream
// happens at once, unless it is captured; an asynchronous copy or a launch that reads what the host changes too early
// is not noticed.

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "adversary.h"
#include "launch.h"

namespace headrace::emulator {
namespace {

/// Memory that nobody has written, unless there is too much of it to be touched.
constexpr int kNan = 0xff;
constexpr std::size_t kMostFilled = std::size_t{1} << 26;
constexpr std::size_t kMemory = std::size_t{1} << 46;

constexpr int kDevices = 2;

constexpr std::size_t kSharedAlways = std::size_t{48} << 10;
constexpr std::size_t kSharedAtMost = 232448;
constexpr unsigned kMostThreads = 1024;
constexpr unsigned kMostBlocksY = 65535;

using Work = std::vector<std::function<void()>>;

/// What a cudaStream_t and, from its capture on, a cudaGraph_t or cudaGraphExec_t points to.
struct StreamState {
  std::unique_ptr<Work> capture;
};

struct State {
  std::map<const void*, std::size_t> shared_limits;  // of kernels that asked for more
  int captures = 0;                                  // that go on
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  cudaError_t last_error = cudaSuccess;
  int device = 0;  // the current one of two, whose memory is one
};

State& state() {
  static State instance;
  return instance;
}

cudaError_t remember(cudaError_t status) {
  if (status != cudaSuccess) {
    state().last_error = status;
  }
  return status;
}

/// What a cudaEvent_t points to.
struct EventState {
  std::chrono::steady_clock::time_point recorded;
};

EventState* event_state(cudaEvent_t event) { return reinterpret_cast<EventState*>(event); }

StreamState* stream_state(cudaStream_t stream) { return reinterpret_cast<StreamState*>(stream); }

/// memset and memcpy, which must not be given null even where nothing is to be done.
void fill(void* to, int value, std::size_t bytes) {
  if (bytes > 0) {
    std::memset(to, value, bytes);
  }
}
void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

/// For calls that are not allowed while a graph is captured, unless the caller has said that it is careful.
cudaError_t outside_captures(const std::function<void()>& work) {
  if (state().captures > 0 && state().mode != cudaStreamCaptureModeRelaxed) {
    return remember(cudaErrorStreamCaptureUnsupported);
  }
  work();
  return cudaSuccess;
}

bool is_valid(const void* kernel, const Configuration& c) {
  const auto limit = state().shared_limits.find(kernel);
  const std::size_t shared = limit == state().shared_limits.end() ? kSharedAlways : limit->second;
  return c.grid.x > 0 && c.grid.x <= 0x7fffffffU && c.grid.y > 0 && c.grid.y <= kMostBlocksY && c.grid.z == 1 &&
         c.block.x > 0 && c.block.x <= kMostThreads && c.block.y == 1 && c.block.z == 1 && c.shared_bytes <= shared;
}

}  // namespace

cudaError_t queue(cudaStream_t stream, std::function<void()> work) {
  StreamState* own = stream_state(stream);
  if (own != nullptr && own->capture != nullptr) {
    own->capture->push_back(std::move(work));
  } else {
    work();
  }
  return cudaSuccess;
}

cudaError_t launch(const void* kernel, const Configuration& configuration, const std::function<void()>& thread,
                   cudaStream_t stream) {
  if (!is_valid(kernel, configuration)) {
    return remember(cudaErrorInvalidConfiguration);
  }
  return queue(stream, [configuration, thread] {
    adversary().begin_launch();
    this_block().run_grid(configuration, thread);
  });
}

}  // namespace headrace::emulator

using headrace::emulator::copy;
using headrace::emulator::event_state;
using headrace::emulator::EventState;
using headrace::emulator::fill;
using headrace::emulator::outside_captures;
using headrace::emulator::queue;
using headrace::emulator::remember;
using headrace::emulator::state;
using headrace::emulator::stream_state;
using headrace::emulator::StreamState;
using headrace::emulator::Work;

extern "C" {

// ---- the device -----------------------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count) {
  *count = headrace::emulator::kDevices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= headrace::emulator::kDevices) {
    return remember(cudaErrorInvalidDevice);
  }
  state().device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = state().device;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {};
  std::strcpy(properties->name, "emulator");
  properties->major = 9;
  properties->multiProcessorCount = 2;
  properties->sharedMemPerBlockOptin = headrace::emulator::kSharedAtMost;
  properties->sharedMemPerMultiprocessor = headrace::emulator::kSharedAtMost + 1024;
  properties->l2CacheSize = 1 << 20;
  properties->totalGlobalMem = headrace::emulator::kMemory;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return outside_captures([] {});
}

// ---- errors ---------------------------------------------------------------------------------------------------------

cudaError_t cudaGetLastError() { return std::exchange(state().last_error, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t status) { return status == cudaSuccess ? "cudaSuccess" : "an error"; }
const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration of a launch";
    case cudaErrorStreamCaptureUnsupported:
      return "not allowed during a capture";
    default:
      return "of the emulator";
  }
}

// ---- memory ---------------------------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  *memory = nullptr;
  if (bytes > headrace::emulator::kMemory || posix_memalign(memory, kAlignment, bytes) != 0) {
    return remember(cudaErrorMemoryAllocation);
  }
  if (bytes <= headrace::emulator::kMostFilled) {
    std::memset(*memory, headrace::emulator::kNan, bytes);
  }
  return outside_captures([] {});
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);  // NOLINT(cppcoreguidelines-no-malloc)
  return outside_captures([] {});
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return outside_captures([=] { fill(to, value, bytes); });
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return queue(stream, [=] { fill(to, value, bytes); });
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/) {
  return outside_captures([=] { copy(to, from, bytes); });
}

// ---- kernels --------------------------------------------------------------------------------------------------------

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* /*kernel*/) {
  *attributes = {};
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const auto bytes = static_cast<std::size_t>(value);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || bytes > headrace::emulator::kSharedAtMost) {
    return remember(cudaErrorInvalidValue);
  }
  state().shared_limits[kernel] = bytes;
  return cudaSuccess;
}

// ---- streams and graphs ---------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = reinterpret_cast<cudaStream_t>(std::make_unique<StreamState>().release());
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::unique_ptr<StreamState> own(stream_state(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  return outside_captures([] {});
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  stream_state(stream)->capture = std::make_unique<Work>();
  ++state().captures;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(stream_state(stream)->capture.release());
  --state().captures;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const StreamState* own = stream_state(stream);
  const bool captured = own != nullptr && own->capture != nullptr;
  *status = captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, state().mode);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long /*flags*/) {
  *executable = reinterpret_cast<cudaGraphExec_t>(std::make_unique<Work>(*reinterpret_cast<Work*>(graph)).release());
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t /*stream*/) {
  for (const auto& work : *reinterpret_cast<Work*>(executable)) {
    work();
  }
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* /*nodes*/, std::size_t* count) {
  *count = reinterpret_cast<Work*>(graph)->size();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const std::unique_ptr<Work> own(reinterpret_cast<Work*>(graph));
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const std::unique_ptr<Work> own(reinterpret_cast<Work*>(executable));
  return cudaSuccess;
}

// ---- events ---------------------------------------------------------------------------------------------------------

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(std::make_unique<EventState>().release());
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::unique_ptr<EventState> own(event_state(event));
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return queue(stream, [event] { event_state(event)->recorded = std::chrono::steady_clock::now(); });
}
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) {
  return outside_captures([] {});
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop) {
  const auto passed = event_state(stop)->recorded - event_state(start)->recorded;
  *milliseconds = std::chrono::duration<float, std::milli>(passed).count();
  return cudaSuccess;
}

}  // extern "C"
