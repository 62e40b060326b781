// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Barriers as objects: of all threads of a block, of a number of threads, and in shared memory.
/// None of them orders memory here: what a fiber has written is there for all others.
namespace headrace::emulator {

/// __syncthreads and its relatives. Threads that have returned are no longer expected.
class BlockBarrier {
 public:
  void begin(int threads) { *this = BlockBarrier(threads); }
  void thread_returned() { --expected_; }
  /// Returns once all threads are here: whether any of them had a predicate other than 0.
  int wait(int predicate);

  BlockBarrier() = default;

 private:
  class Arrival;
  explicit BlockBarrier(int threads) : expected_(threads) {}

  int expected_ = 0;
  int arrived_ = 0;
  std::uint64_t generation_ = 0;
  int any_ = 0;
  int result_ = 0;
};

/// One of a block's numbered hardware barriers. Warps come whole on the hardware, threads here.
class NamedBarrier {
 public:
  /// @throws Fault when not all that come give the same number of threads
  void arrive(std::uint32_t threads, std::uint32_t id);
  void sync(std::uint32_t threads, std::uint32_t id);

 private:
  class Release;
  std::uint32_t expected_ = 0;
  std::uint32_t arrived_ = 0;
  std::uint64_t generation_ = 0;
};

/// An mbarrier: eight bytes of shared memory that count down arrivals, and a phase that changes when all have come.
/// Transaction counts, and with them TMA, are not modelled.
class SharedBarrier {
 public:
  /// @throws Fault when the eight bytes hold no barrier
  explicit SharedBarrier(std::uint64_t* memory);

  static void init(std::uint64_t* memory, std::uint32_t arrivals);
  void arrive() const;
  /// Returns when the phase of this parity is over.
  void wait(std::uint32_t parity) const;

 private:
  class PhaseEnd;
  std::uint64_t* memory_;
};

}  // namespace headrace::emulator
