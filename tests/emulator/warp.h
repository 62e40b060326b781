// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "fault.h"
#include "fibers.h"

namespace headrace::emulator {

inline constexpr int kWarpThreads = 32;

/// A warp's threads where they do something together. Threads that have returned are no longer expected.
class Warp {
 public:
  void begin(int threads) {
    expected_ = threads;
    arrived_ = 0;
  }
  void thread_returned() { --expected_; }

  /// Comes together with the other lanes, under a name that all must give; `combine(inputs, outputs)` is called once,
  /// with pointers by lane, null for a lane that has returned.
  template <class In, class Out, class Combine>
  void meet(const char* name, int lane, const In& in, Out& out, const Combine& combine) {
    const auto own = static_cast<std::size_t>(lane);
    if (arrived_ == 0) {
      name_ = name;
      inputs_.fill(nullptr);
      outputs_.fill(nullptr);
    } else if (name_ != name && std::string_view(name_) != name) {
      throw Fault(std::string("lanes of a warp meet in ") + name_ + " and in " + name);
    }
    inputs_[own] = &in;
    outputs_[own] = &out;
    ++arrived_;
    const std::uint64_t meeting = meeting_;
    wait_for(Meeting(*this));
    if (meeting_ != meeting) {
      return;
    }
    std::array<const In*, kWarpThreads> ins{};
    std::array<Out*, kWarpThreads> outs{};
    for (std::size_t i = 0; i < kWarpThreads; ++i) {
      ins[i] = static_cast<const In*>(inputs_[i]);
      outs[i] = static_cast<Out*>(outputs_[i]);
    }
    combine(ins, outs);
    arrived_ = 0;
    ++meeting_;
  }

 private:
  class Meeting final : public Wait {
   public:
    explicit Meeting(const Warp& warp) : warp_(warp), name_(warp.name_), meeting_(warp.meeting_) {}
    [[nodiscard]] bool is_over() const override {
      return warp_.meeting_ != meeting_ || warp_.arrived_ == warp_.expected_;
    }
    [[nodiscard]] std::string name() const override { return std::string("the other lanes, in ") + name_; }

   private:
    const Warp& warp_;
    const char* name_;
    std::uint64_t meeting_;
  };

  int expected_ = 0;
  int arrived_ = 0;
  std::uint64_t meeting_ = 0;
  const char* name_ = "";
  std::array<const void*, kWarpThreads> inputs_{};
  std::array<void*, kWarpThreads> outputs_{};
};

}  // namespace headrace::emulator
