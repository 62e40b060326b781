// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

/// cp.async: copies to shared memory that read their source and write their target at any time between their start and
/// the arrival that tells of their end.
namespace headrace::emulator {

struct Copy {
  std::byte* to;
  const std::byte* from;  ///< null: zeros
  std::size_t bytes;
};

class AsyncCopies {
 public:
  void begin(int threads);
  /// Starts a copy of a thread.
  void start(int thread, const Copy& copy);
  /// Arrives at an mbarrier when all copies that the thread has started are done.
  void arrive_after(int thread, std::uint64_t* barrier);

  /// Goes on with some.
  void step();
  /// Ends something; false where nothing is under way.
  bool force();

 private:
  struct Batch {
    std::vector<Copy> copies;
    std::uint64_t* barrier;
  };
  void end_batch(int thread);

  std::vector<std::vector<Copy>> started_;    // by thread, with no arrival yet
  std::vector<std::deque<Batch>> under_way_;  // by thread, in the order of their arrivals
  std::vector<int> busy_;                     // threads with batches
};

}  // namespace headrace::emulator
