// SPDX-License-Identifier: Apache-2.0
//
// makecontext gives a fiber its stack; afterwards switches are jumps, for swapcontext asks the kernel for the signal
// mask each time. A fiber outlives the block that it ran for, and takes part in the next one.

#undef _FORTIFY_SOURCE  // which takes a jump to another stack for an error
#include "fibers.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "adversary.h"
#include "fault.h"
#include "switch_notice.h"

namespace headrace::emulator {
namespace {

constexpr unsigned kWarp = 32;

/// A stack below which no memory is. Stacks end at different places of a page, so that their ends, where all the work
/// is done, do not all want the same lines of the processor's cache.
class Stack {
 public:
  explicit Stack(std::size_t number)
      : memory_(mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
        size_(kBytes - kGuard - number * kStagger % kMostStagger) {
    if (memory_ == MAP_FAILED || mprotect(data(), kBytes - kGuard, PROT_READ | PROT_WRITE) != 0) {
      throw Fault("no memory for a fiber's stack");
    }
  }
  ~Stack() { munmap(memory_, kBytes); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  [[nodiscard]] void* data() const { return static_cast<std::byte*>(memory_) + kGuard; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kBytes = std::size_t{256} << 10;
  static constexpr std::size_t kGuard = std::size_t{64} << 10;
  static constexpr std::size_t kStagger = 320;
  static constexpr std::size_t kMostStagger = std::size_t{32} << 10;
  void* memory_;
  std::size_t size_;
};

struct Fiber {
  explicit Fiber(std::size_t number) : stack(number) {}

  Stack stack;
  ucontext_t start{};
  jmp_buf point{};
  bool is_started = false;
  SwitchNotice notice;
};

/// What decides whether a fiber gets a turn; apart from the fiber, because it is looked at much more often.
struct Status {
  const Wait* wait = nullptr;
  bool is_done = true;

  [[nodiscard]] bool can_go_on() const { return !is_done && (wait == nullptr || wait->is_over()); }
};

class Scheduler {
 public:
  void run(int count, const std::function<void(int)>& body, Background& background);
  void wait(const Wait& wait);
  [[nodiscard]] int current() const noexcept { return current_; }

 private:
  [[noreturn]] static void enter();
  [[noreturn]] void live();
  // Frames of their own: a jump back into a frame loses what that frame has in registers.
  [[gnu::noinline]] static void prepare(Fiber& fiber);
  [[gnu::noinline]] void resume(int number);
  [[gnu::noinline]] void suspend();
  void put_to_sleep();
  bool run_round();
  [[nodiscard]] std::string describe() const;
  void abandon();

  [[nodiscard]] Fiber& fiber(int number) { return *fibers_[static_cast<std::size_t>(number)]; }
  [[nodiscard]] Status& status(int number) { return status_[static_cast<std::size_t>(number)]; }

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Status> status_;
  std::vector<int> order_;
  std::vector<int> asleep_;  // rounds left, by warp
  const std::function<void(int)>* body_ = nullptr;
  std::exception_ptr thrown_;
  jmp_buf point_{};
  SwitchNotice notice_;
  int current_ = 0;
  int left_ = 0;
};

Scheduler& scheduler() {
  static Scheduler instance;
  return instance;
}

void Scheduler::enter() { scheduler().live(); }

void Scheduler::live() {
  const int number = current_;
  fiber(number).notice.arrived();
  while (true) {
    try {
      (*body_)(number);
    } catch (...) {
      thrown_ = std::current_exception();
    }
    status(number).is_done = true;
    --left_;
    suspend();
  }
}

void Scheduler::resume(int number) {
  Fiber& next = fiber(number);
  current_ = number;
  if (_setjmp(point_) == 0) {
    notice_.leave_for(next.stack.data(), next.stack.size());
    if (next.is_started) {
      _longjmp(next.point, 1);
    }
    next.is_started = true;
    setcontext(&next.start);
  }
  notice_.arrived();
}

void Scheduler::suspend() {
  Fiber& own = fiber(current_);
  if (_setjmp(own.point) == 0) {
    own.notice.go_back();
    _longjmp(point_, 1);
  }
  own.notice.arrived();
}

void Scheduler::wait(const Wait& wait) {
  if (wait.is_over()) {
    return;
  }
  status(current_).wait = &wait;
  suspend();
}

/// Sends a warp to sleep now and then, mostly for a short time, sometimes for as long as others need for a lot of work.
void Scheduler::put_to_sleep() {
  constexpr std::uint32_t kRounds = 32;
  constexpr std::uint32_t kDoublings = 10;
  for (int& rounds : asleep_) {
    if (rounds > 0) {
      --rounds;
    } else if (adversary().one_in(kRounds)) {
      rounds = 1 << adversary().below(kDoublings);
    }
  }
}

/// Gives each fiber a turn that can go on, and does not sleep; false where there is none.
bool Scheduler::run_round() {
  adversary().shuffle(order_);
  bool any = false;
  for (const int number : order_) {
    if (asleep_[static_cast<unsigned>(number) / kWarp] > 0 || !status(number).can_go_on()) {
      continue;
    }
    status(number).wait = nullptr;
    any = true;
    resume(number);
    if (thrown_ != nullptr) {
      abandon();
      std::rethrow_exception(std::exchange(thrown_, nullptr));
    }
  }
  return any;
}

void Scheduler::prepare(Fiber& fiber) {
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.data();
  fiber.start.uc_stack.ss_size = fiber.stack.size();
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, &Scheduler::enter, 0);
}

void Scheduler::run(int count, const std::function<void(int)>& body, Background& background) {
  while (static_cast<int>(fibers_.size()) < count) {
    fibers_.push_back(std::make_unique<Fiber>(fibers_.size()));
  }
  order_.resize(static_cast<std::size_t>(count));
  std::iota(order_.begin(), order_.end(), 0);
  asleep_.assign((order_.size() + kWarp - 1) / kWarp, 0);
  status_.assign(order_.size(), {.wait = nullptr, .is_done = false});
  body_ = &body;
  left_ = count;
  for (const int number : order_) {
    if (!fiber(number).is_started) {
      prepare(fiber(number));
    }
  }
  while (left_ > 0) {
    background.step();
    put_to_sleep();
    if (run_round()) {
      continue;
    }
    std::ranges::fill(asleep_, 0);
    if (!run_round() && !background.force()) {
      const std::string state = describe();
      abandon();
      throw Fault("deadlock: " + state);
    }
  }
}

/// What the fibers of each warp wait for.
std::string Scheduler::describe() const {
  std::map<std::pair<std::size_t, std::string>, int> waiting;
  for (std::size_t i = 0; i < status_.size(); ++i) {
    if (!status_[i].is_done) {
      ++waiting[{i / kWarp, status_[i].wait->name()}];
    }
  }
  std::string text;
  for (const auto& [what, threads] : waiting) {
    text += (text.empty() ? "" : "; ") + std::to_string(threads) + " threads of warp " + std::to_string(what.first) +
            " wait for " + what.second;
  }
  return text;
}

/// The fibers that were not done start anew next time.
void Scheduler::abandon() {
  for (std::size_t i = 0; i < status_.size(); ++i) {
    fibers_[i]->is_started = fibers_[i]->is_started && status_[i].is_done;
  }
}

}  // namespace

void run_fibers(int count, const std::function<void(int)>& body, Background& background) {
  scheduler().run(count, body, background);
}

void wait_for(const Wait& wait) { scheduler().wait(wait); }

int this_fiber() noexcept { return scheduler().current(); }

}  // namespace headrace::emulator
