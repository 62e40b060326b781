// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "support/random.h"

namespace headrace::emulator {

/// When something asynchronous happens: at once, as late as it can, or at any time between.
enum class Completion { eager, lazy, random };

/// Decides what the hardware leaves open. HEADRACE_EMULATOR_SEED repeats a run, HEADRACE_EMULATOR_COMPLETION (eager,
/// lazy or random) holds for all launches; otherwise each one has any of the three.
class Adversary {
 public:
  Adversary();

  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }

  /// For the launches from now on; absent: any.
  void set_completion(std::optional<Completion> completion) noexcept { fixed_ = completion; }
  /// What was set before.
  [[nodiscard]] std::optional<Completion> completion() const noexcept { return fixed_; }
  void begin_launch();

  /// Whether something that has been started is finished in the same moment.
  bool at_once() { return of_launch_ == Completion::eager || (of_launch_ == Completion::random && one_in(2)); }
  /// Whether something that is under way is finished, asked again and again.
  bool meanwhile() { return of_launch_ == Completion::random && one_in(4); }

  bool one_in(std::uint32_t n) { return below(n) == 0; }
  /// Uniform in [0, n): drawn too often for a division.
  std::uint32_t below(std::uint32_t n) {
    return static_cast<std::uint32_t>((random_.bits() >> 32) * std::uint64_t{n} >> 32);
  }
  void shuffle(std::span<int> values);

 private:
  std::uint64_t seed_;
  test::Random random_;
  std::optional<Completion> fixed_;
  Completion of_launch_ = Completion::random;
};

Adversary& adversary();

}  // namespace headrace::emulator
