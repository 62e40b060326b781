// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

/// The threads of a block as fibers of one thread of the processor. A fiber runs until it waits for something; then
/// others get their turn, in an order that is shuffled anew for each round. Now and then a warp sleeps for some rounds.
namespace headrace::emulator {

/// Something that a fiber waits for. It lives on the waiting fiber's stack.
class Wait {
 public:
  Wait() = default;
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;
  virtual ~Wait() = default;

  [[nodiscard]] virtual bool is_over() const = 0;
  [[nodiscard]] virtual std::string name() const = 0;
};

/// What goes on beside the fibers.
class Background {
 public:
  Background() = default;
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  virtual ~Background() = default;

  /// Does some of what is under way, or nothing.
  virtual void step() = 0;
  /// Does something of what is under way; false where there is nothing.
  virtual bool force() = 0;
};

/// Runs body(0), ..., body(count - 1) as fibers until all have returned.
/// @throws Fault when none can go on, saying what each warp waits for; and whatever a body throws
void run_fibers(int count, const std::function<void(int)>& body, Background& background);

/// For a fiber: returns when `wait` is over.
void wait_for(const Wait& wait);

/// The number of the fiber that is running.
[[nodiscard]] int this_fiber() noexcept;

}  // namespace headrace::emulator
