// SPDX-License-Identifier: Apache-2.0
//
// The tables of a plan go to the GPU as arguments of a kernel that writes them down. The driver copies arguments when a
// launch is queued, and into the graph where it is captured: so nothing of the host's is read later, nothing has to be
// waited for, and no staging memory has to be kept until a copy has run.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>

#include "attention/device_passes.h"
#include "attention/paths/cuda_path.h"
#include "core/layout_text.h"
#include "device/cuda/current.h"
#include "device/cuda/launch.cuh"
#include "headrace/cuda.h"
#include "headrace/error.h"

namespace headrace {
namespace attention {
namespace {

constexpr int kThreads = 256;
/// What arguments may take in all launches, and in those of CUDA 12.1 and later on sm_70 and later (32,764 bytes).
constexpr std::size_t kSmallBytes = 3968;
constexpr std::size_t kLargeBytes = 28672;

template <std::size_t kBytes>
struct Chunk {
  alignas(16) std::byte bytes[kBytes];
};

template <std::size_t kBytes>
__global__ void __launch_bounds__(kThreads)
    write_chunk(const __grid_constant__ Chunk<kBytes> chunk, uint4* to, int count) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < count) {
    to[i] = reinterpret_cast<const uint4*>(chunk.bytes)[i];
  }
}

/// Collects bytes and queues them, a chunk at a time.
class TableWriter {
 public:
  TableWriter(std::byte* to, Stream stream) : to_(to), stream_(stream) {}

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::size_t some = std::min(bytes.size(), kLargeBytes - used_);
      std::memcpy(chunk_.bytes + used_, bytes.data(), some);
      used_ += some;
      bytes = bytes.subspan(some);
      if (used_ == kLargeBytes) {
        flush();
      }
    }
  }
  /// Zeros up to where the next array begins.
  void align() {
    constexpr std::array<std::byte, static_cast<std::size_t>(kTableAlignment)> kZeros{};
    const std::size_t rest = used_ % kZeros.size();
    append(std::span(kZeros).first(rest == 0 ? 0 : kZeros.size() - rest));
  }
  void flush() {
    if (used_ == 0) {
      return;
    }
    if (used_ <= kSmallBytes) {
      Chunk<kSmallBytes> small;
      std::memcpy(small.bytes, chunk_.bytes, used_);
      queue(small);
    } else {
      queue(chunk_);
    }
    to_ += used_;
    used_ = 0;
  }

 private:
  template <std::size_t kBytes>
  void queue(const Chunk<kBytes>& chunk) const {
    const auto count = static_cast<int>(used_ / sizeof(uint4));
    const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
    device::cuda::launch("tables", write_chunk<kBytes>, blocks, kThreads, 0, stream_, chunk,
                         reinterpret_cast<uint4*>(to_), count);
  }

  std::byte* to_;
  Stream stream_;
  std::size_t used_ = 0;
  Chunk<kLargeBytes> chunk_;
};

}  // namespace

void load_upload() {
  device::cuda::load(write_chunk<kSmallBytes>);
  device::cuda::load(write_chunk<kLargeBytes>);
}

}  // namespace attention

void upload(Plan& plan, std::span<std::byte> tables, Stream stream) {
  if (plan.device_passes_ == nullptr) {
    throw Error("plan", "a plan for a GPU (Limits.device.cuda)", "one for the processor");
  }
  if (static_cast<std::int64_t>(tables.size()) < plan.table_bytes_) {
    throw Error("tables", "at least " + std::to_string(plan.table_bytes_) + " bytes", std::to_string(tables.size()));
  }
  if (reinterpret_cast<std::uintptr_t>(tables.data()) % attention::kTableAlignment != 0) {
    throw Error("tables", "an address divisible by " + std::to_string(attention::kTableAlignment),
                layout_text(tables.data(), attention::kTableAlignment));
  }
  const device::cuda::CurrentDevice current(plan.device().cuda->ordinal());
  plan.uploaded_ = false;
  attention::TableWriter writer(tables.data(), stream);
  attention::for_each_table(*plan.device_passes_, [&](const auto& values, const auto& /*at*/) {
    writer.append(std::as_bytes(std::span(values)));
    writer.align();
  });
  writer.flush();
  plan.tables_ = tables.data();
  plan.uploaded_ = true;
}

}  // namespace headrace
