// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "barriers.h"
#include "copies.h"
#include "products.h"
#include "warp.h"

namespace headrace::emulator {

/// CUDA's dim3 and uint3.
struct Triple {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

/// What a launch asks for.
struct Configuration {
  Triple grid;
  Triple block;
  std::size_t shared_bytes = 0;
};

/// The block of threads that is running. Blocks of a grid run one after the other, in a random order: what a kernel
/// asks of blocks that run together is not modelled.
class Block final : public Background {
 public:
  /// Runs `kernel` as every thread of every block. @throws Fault
  void run_grid(const Configuration& configuration, const std::function<void()>& kernel);

  [[nodiscard]] Triple index() const noexcept { return index_; }
  [[nodiscard]] Triple grid() const noexcept { return grid_; }
  [[nodiscard]] Triple threads() const noexcept { return threads_; }

  /// Of what the running thread has a part in.
  [[nodiscard]] Warp& warp() { return warps_[static_cast<std::size_t>(this_fiber() / kWarpThreads)]; }
  [[nodiscard]] BlockBarrier& barrier() noexcept { return barrier_; }
  [[nodiscard]] NamedBarrier& named_barrier(std::uint32_t id);
  [[nodiscard]] AsyncCopies& copies() noexcept { return copies_; }
  [[nodiscard]] AsyncProducts& products() noexcept { return products_; }

  /// Dynamic shared memory.
  [[nodiscard]] std::byte* dynamic_shared() noexcept { return shared_; }
  /// Where an address lies in it. @throws Fault for one outside
  [[nodiscard]] std::uint32_t shared_offset(const void* address) const;
  /// What lies there. @throws Fault for bytes outside
  [[nodiscard]] std::byte* shared(std::uint32_t offset, std::size_t bytes) const;

  void step() override;
  bool force() override;

 private:
  void begin();
  void run_thread(int thread, const std::function<void()>& kernel);

  Triple index_;
  Triple grid_;
  Triple threads_;
  std::vector<std::byte> memory_;
  std::byte* shared_ = nullptr;
  std::size_t shared_bytes_ = 0;
  std::vector<Warp> warps_;
  BlockBarrier barrier_;
  std::array<NamedBarrier, 16> named_barriers_;
  AsyncCopies copies_;
  AsyncProducts products_;
};

Block& this_block();

}  // namespace headrace::emulator
