// SPDX-License-Identifier: Apache-2.0
#include "barriers.h"

#include <string>

#include "block.h"
#include "fault.h"
#include "fibers.h"

namespace headrace::emulator {

// ---- all threads of a block -----------------------------------------------------------------------------------------

class BlockBarrier::Arrival final : public Wait {
 public:
  explicit Arrival(const BlockBarrier& barrier) : barrier_(barrier), generation_(barrier.generation_) {}
  [[nodiscard]] bool is_over() const override {
    return barrier_.generation_ != generation_ || barrier_.arrived_ == barrier_.expected_;
  }
  [[nodiscard]] std::string name() const override { return "__syncthreads"; }

 private:
  const BlockBarrier& barrier_;
  std::uint64_t generation_;
};

int BlockBarrier::wait(int predicate) {
  any_ |= static_cast<int>(predicate != 0);
  ++arrived_;
  const std::uint64_t generation = generation_;
  wait_for(Arrival(*this));
  if (generation_ == generation) {
    result_ = any_;
    any_ = 0;
    arrived_ = 0;
    ++generation_;
  }
  return result_;
}

// ---- a number of threads --------------------------------------------------------------------------------------------

class NamedBarrier::Release final : public Wait {
 public:
  Release(const NamedBarrier& barrier, std::uint32_t id, std::uint64_t generation)
      : barrier_(barrier), id_(id), generation_(generation) {}
  [[nodiscard]] bool is_over() const override { return barrier_.generation_ != generation_; }
  [[nodiscard]] std::string name() const override {
    return "named barrier " + std::to_string(id_) + ", where " + std::to_string(barrier_.arrived_) + " of " +
           std::to_string(barrier_.expected_) + " threads are";
  }

 private:
  const NamedBarrier& barrier_;
  std::uint32_t id_;
  std::uint64_t generation_;
};

void NamedBarrier::arrive(std::uint32_t threads, std::uint32_t id) {
  if (arrived_ != 0 && threads != expected_) {
    throw Fault("named barrier " + std::to_string(id) + " is for " + std::to_string(expected_) + " threads and for " +
                std::to_string(threads));
  }
  expected_ = threads;
  if (++arrived_ == expected_) {
    arrived_ = 0;
    ++generation_;
  }
}

void NamedBarrier::sync(std::uint32_t threads, std::uint32_t id) {
  const std::uint64_t generation = generation_;
  arrive(threads, id);
  wait_for(Release(*this, id, generation));
}

// ---- shared memory --------------------------------------------------------------------------------------------------

namespace {

// phase: bit 0; arrivals left: bits 1 to 20; of a phase: bits 21 to 40; a mark above them.
constexpr int kLeftBit = 1;
constexpr int kArrivalsBit = 21;
constexpr int kMarkBit = 41;
constexpr std::uint64_t kCount = (std::uint64_t{1} << 20) - 1;
constexpr std::uint64_t kMark = 0x2a5c3b;

std::string place(const std::uint64_t* memory) {
  return "the mbarrier at byte " + std::to_string(this_block().shared_offset(memory)) + " of shared memory";
}

}  // namespace

SharedBarrier::SharedBarrier(std::uint64_t* memory) : memory_(memory) {
  if (*memory >> kMarkBit != kMark) {
    throw Fault(place(memory) + " is used before its initialisation, or was overwritten");
  }
}

void SharedBarrier::init(std::uint64_t* memory, std::uint32_t arrivals) {
  if (arrivals == 0 || arrivals > kCount || reinterpret_cast<std::uintptr_t>(memory) % sizeof(std::uint64_t) != 0) {
    throw Fault(place(memory) + " is initialised for " + std::to_string(arrivals) + " arrivals");
  }
  *memory = kMark << kMarkBit | std::uint64_t{arrivals} << kArrivalsBit | std::uint64_t{arrivals} << kLeftBit;
}

void SharedBarrier::arrive() const {
  const std::uint64_t arrivals = *memory_ >> kArrivalsBit & kCount;
  *memory_ -= std::uint64_t{1} << kLeftBit;
  if ((*memory_ >> kLeftBit & kCount) == 0) {
    *memory_ = (*memory_ | arrivals << kLeftBit) ^ 1U;
  }
}

class SharedBarrier::PhaseEnd final : public Wait {
 public:
  PhaseEnd(const std::uint64_t* memory, std::uint32_t parity) : memory_(memory), parity_(parity) {}
  [[nodiscard]] bool is_over() const override { return (*memory_ & 1U) != parity_; }
  [[nodiscard]] std::string name() const override {
    return "phase " + std::to_string(parity_) + " of " + place(memory_) + ", where " +
           std::to_string(*memory_ >> kLeftBit & kCount) + " arrivals are missing";
  }

 private:
  const std::uint64_t* memory_;
  std::uint32_t parity_;
};

void SharedBarrier::wait(std::uint32_t parity) const { wait_for(PhaseEnd(memory_, parity)); }

}  // namespace headrace::emulator
