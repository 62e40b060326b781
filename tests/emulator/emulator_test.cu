// SPDX-License-Identifier: Apache-2.0
//
// Whether the emulator can see a fault: small kernels, right and wrong. Compiled as the kernels of the library are.
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/memory_sm80.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "adversary.h"
#include "device/cuda/launch.cuh"
#include "fault.h"

namespace headrace::emulator {
namespace {

using Barrier = cutlass::arch::ClusterBarrier;
using device::cuda::dynamic_shared;

constexpr char kRight[] = "right";

/// What a launch ended with; "" where it ended well.
template <class... Params>
std::string fault_of(void (*kernel)(Params...), unsigned threads, std::size_t shared_bytes,
                     const std::type_identity_t<Params>&... params) {
  try {
    device::cuda::launch("test", kernel, 1, threads, shared_bytes, Stream{}, params...);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class Emulator : public testing::Test {
 protected:
  void SetUp() override { before_ = adversary().completion(); }
  void TearDown() override { adversary().set_completion(before_); }

 private:
  std::optional<Completion> before_;
};

// ---- barriers of blocks and warps -----------------------------------------------------------------------------------

__global__ void reverse_kernel(int* values, bool has_barrier) {
  __shared__ int all[256];
  const auto own = static_cast<int>(threadIdx.x);
  all[own] = values[own];
  if (has_barrier) {
    __syncthreads();
  }
  values[own] = all[255 - own];
}

TEST_F(Emulator, NoticesAMissingBarrier) {
  std::vector<int> ascending(256);
  std::iota(ascending.begin(), ascending.end(), 0);
  const std::vector<int> descending(ascending.rbegin(), ascending.rend());
  std::vector<int> values = ascending;
  EXPECT_EQ(fault_of(reverse_kernel, 256, 0, values.data(), true), "");
  EXPECT_EQ(values, descending);
  values = ascending;
  EXPECT_EQ(fault_of(reverse_kernel, 256, 0, values.data(), false), "");
  EXPECT_NE(values, descending);
}

__global__ void unwritten_kernel(float* value) {
  __shared__ float unwritten;
  *value = unwritten + *dynamic_shared<float>();
}

TEST_F(Emulator, SharedMemoryStartsAsNan) {
  float value = 0.0F;
  EXPECT_EQ(fault_of(unwritten_kernel, 1, 4, &value), "");
  EXPECT_NE(value, value);
}

__global__ void half_kernel() {
  if (threadIdx.x < 32) {
    cutlass::arch::NamedBarrier::sync(64, 1);
  } else {
    __syncthreads();
  }
}

TEST_F(Emulator, SaysWhatADeadlockWaitsFor) {
  const std::string fault = fault_of(half_kernel, 64, 0);
  EXPECT_TRUE(contains(fault, "32 threads of warp 0 wait for named barrier 1, where 32 of 64 threads are")) << fault;
  EXPECT_TRUE(contains(fault, "32 threads of warp 1 wait for __syncthreads")) << fault;
  EXPECT_EQ(fault_of(unwritten_kernel, 64, 4, std::vector<float>(1).data()), "") << "after a deadlock";
}

__global__ void divergent_kernel(int* result) {
  *result = threadIdx.x < 16 ? __shfl_xor_sync(~0U, 1, 1) : static_cast<int>(__ballot_sync(~0U, 1));
}

TEST_F(Emulator, NoticesLanesThatMeetInDifferentPlaces) {
  int result = 0;
  EXPECT_TRUE(contains(fault_of(divergent_kernel, 32, 0, &result), "lanes of a warp meet"));
}

// ---- mbarriers and asynchronous copies ------------------------------------------------------------------------------

struct Pipeline {
  alignas(16) float buffer[32][4];
  std::uint64_t full;
  std::uint64_t empty;
};

enum class PipelineFault { none, unmade_barrier, no_wait_for_full, no_wait_for_empty, early_release };

/// A warp copies rows to shared memory, the other one adds them up.
__global__ void pipeline_kernel(const float* from, float* sums, int steps, PipelineFault fault) {
  auto& smem = *dynamic_shared<Pipeline>();
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    Barrier::init(&smem.full, 32);
    if (fault != PipelineFault::unmade_barrier) {
      Barrier::init(&smem.empty, 32);
    }
  }
  __syncthreads();
  float sum = 0.0F;
  std::uint32_t phase = 0;
  for (int step = 0; step < steps; ++step) {
    if (threadIdx.x < 32) {
      if (fault != PipelineFault::no_wait_for_empty) {
        Barrier::wait(&smem.empty, phase ^ 1U);
      }
      cutlass::arch::cp_async_zfill<16, cutlass::arch::CacheOperation::Global>(smem.buffer[lane],
                                                                               from + (step * 32 + lane) * 4, true);
      cutlass::arch::cpasync_barrier_arrive_noinc(&smem.full);
    } else {
      if (fault != PipelineFault::no_wait_for_full) {
        Barrier::wait(&smem.full, phase);
      }
      if (fault == PipelineFault::early_release) {
        Barrier::arrive(&smem.empty);
        __syncwarp();
      }
      sum += smem.buffer[31 - lane][0];
      if (fault != PipelineFault::early_release) {
        Barrier::arrive(&smem.empty);
      }
    }
    phase ^= 1U;
  }
  if (threadIdx.x >= 32) {
    sums[lane] = sum;
  }
}

class EmulatedPipeline : public Emulator {
 protected:
  static constexpr int kSteps = 20;

  /// Whether a run gives the right sums, or the fault it ended with.
  static std::string outcome(Completion completion, PipelineFault fault) {
    adversary().set_completion(completion);
    std::vector<float> from(std::size_t{kSteps} * 32 * 4);
    std::iota(from.begin(), from.end(), 1.0F);
    std::vector<float> expected(32);
    for (std::size_t i = 0; i < std::size_t{kSteps} * 32; ++i) {
      expected[31 - i % 32] += from[4 * i];
    }
    std::vector<float> sums(32);
    const std::string found = fault_of(pipeline_kernel, 64, sizeof(Pipeline), from.data(), sums.data(), kSteps, fault);
    return !found.empty() ? found : sums == expected ? kRight : "wrong";
  }
};

TEST_F(EmulatedPipeline, IsRightWheneverCopiesEnd) {
  for (const Completion completion : {Completion::eager, Completion::lazy, Completion::random}) {
    EXPECT_EQ(outcome(completion, PipelineFault::none), kRight);
  }
}

TEST_F(EmulatedPipeline, ReadBeforeCopiesEnd) {
  EXPECT_NE(outcome(Completion::lazy, PipelineFault::no_wait_for_full), kRight);
}

TEST_F(EmulatedPipeline, BufferReusedBeforeItIsRead) {
  EXPECT_NE(outcome(Completion::eager, PipelineFault::no_wait_for_empty), kRight);
}

TEST_F(EmulatedPipeline, BufferGivenBackTooEarly) {
  EXPECT_NE(outcome(Completion::eager, PipelineFault::early_release), kRight);
}

TEST_F(EmulatedPipeline, BarrierThatWasNotMade) {
  EXPECT_TRUE(contains(outcome(Completion::random, PipelineFault::unmade_barrier), "before its initialisation"));
}

// ---- products of a warp group ---------------------------------------------------------------------------------------

using Mma = cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_SS<cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::K>;

enum class ProductFault { none, no_wait, operand_overwritten, no_fence, no_proxy_fence, left_behind };

template <std::size_t... I>
__device__ void multiply(float (&d)[32], std::uint64_t a, std::uint64_t b, std::index_sequence<I...>) {
  Mma::fma(a, b, d[I]..., cute::SM90::GMMA::ScaleOut::Zero);
}

/// All ones times all twos.
__global__ void product_kernel(float* out, ProductFault fault) {
  auto* shared = dynamic_shared<__nv_bfloat16>();
  for (unsigned i = threadIdx.x; i < 64 * 64; i += 128) {
    shared[i] = __float2bfloat16_rn(1.0F);
    shared[64 * 64 + i] = __float2bfloat16_rn(2.0F);
  }
  auto* written = reinterpret_cast<std::uint64_t*>(shared + 2 * 64 * 64);
  if (threadIdx.x == 0) {
    cutlass::arch::ClusterBarrier::init(written, 128);
  }
  __syncthreads();
  cutlass::arch::ClusterBarrier::arrive(written);
  cutlass::arch::ClusterBarrier::wait(written, 0);
  if (fault != ProductFault::no_proxy_fence) {
    cutlass::arch::fence_view_async_shared();
  }
  constexpr std::uint64_t kSwizzled = std::uint64_t{1 << 30 | 64} << 32;
  float d[32] = {};
  if (fault != ProductFault::no_fence) {
    cute::warpgroup_arrive();
  }
  multiply(d, kSwizzled, kSwizzled | 64 * 64 * 2 / 16, std::make_index_sequence<32>());
  cute::warpgroup_commit_batch();
  if (fault == ProductFault::operand_overwritten) {
    for (unsigned i = threadIdx.x; i < 64 * 64; i += 128) {
      shared[i] = __float2bfloat16_rn(7.0F);
    }
  }
  if (fault == ProductFault::no_wait || fault == ProductFault::left_behind) {
    out[threadIdx.x] = d[0];
  }
  if (fault == ProductFault::left_behind) {
    return;
  }
  cute::warpgroup_wait<0>();
  if (fault != ProductFault::no_wait) {
    out[threadIdx.x] = d[0];
  }
}

class EmulatedProduct : public Emulator {
 protected:
  static constexpr std::size_t kBytes = 2 * 64 * 64 * 2 + sizeof(std::uint64_t);

  static std::string outcome(Completion completion, ProductFault fault) {
    adversary().set_completion(completion);
    std::vector<float> out(128);
    const std::string found = fault_of(product_kernel, 128, kBytes, out.data(), fault);
    return !found.empty() ? found : out == std::vector<float>(128, 32.0F) ? kRight : "wrong";
  }
};

TEST_F(EmulatedProduct, IsRightWheneverItHappens) {
  for (const Completion completion : {Completion::eager, Completion::lazy, Completion::random}) {
    EXPECT_EQ(outcome(completion, ProductFault::none), kRight);
  }
}

TEST_F(EmulatedProduct, AccumulatorReadBeforeTheWait) {
  EXPECT_NE(outcome(Completion::lazy, ProductFault::no_wait), kRight);
}

TEST_F(EmulatedProduct, OperandOverwrittenBeforeTheWait) {
  EXPECT_NE(outcome(Completion::lazy, ProductFault::operand_overwritten), kRight);
}

TEST_F(EmulatedProduct, GroupsBeginWithFencesAndEndBeforeTheThread) {
  EXPECT_TRUE(contains(outcome(Completion::random, ProductFault::no_proxy_fence), "without fence_view_async_shared"));
  EXPECT_TRUE(contains(outcome(Completion::random, ProductFault::no_fence), "without warpgroup_arrive"));
  EXPECT_TRUE(contains(outcome(Completion::lazy, ProductFault::left_behind), "may still be under way"));
}

// ---- launches -------------------------------------------------------------------------------------------------------

TEST_F(Emulator, RefusesLaunchesThatAGpuRefuses) {
  float value = 0.0F;
  const auto launch = [&](dim3 grid, dim3 block, std::size_t bytes) {
    return [=, to = &value] { device::cuda::launch("test", unwritten_kernel, grid, block, bytes, Stream{}, to); };
  };
  EXPECT_THROW(launch(0, 32, 4)(), Error);
  EXPECT_THROW(launch({1, 65536}, 32, 4)(), Error);
  EXPECT_THROW(launch(1, 1025, 4)(), Error);
  EXPECT_THROW(launch(1, 32, 49 * 1024)(), Error);
  device::cuda::allow_shared_memory(unwritten_kernel, 49 * 1024);
  EXPECT_NO_THROW(launch(1, 32, 49 * 1024)());
}

}  // namespace
}  // namespace headrace::emulator
