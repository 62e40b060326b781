// SPDX-License-Identifier: Apache-2.0
//
// A serving loop as engines run it: every step is planned while the one before it runs, on two streams by two threads,
// one of which captures a step in a graph now and then. Plans are remade, or dropped as soon as their work is queued.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "captured_graph.h"
#include "case_on_device.h"
#include "device/cuda/current.h"
#include "device/cuda/memory.h"
#include "support/random.h"

namespace headrace::test {
namespace {

using device::cuda::DeviceArray;
using device::cuda::DeviceBuffer;

CaseSpec spec(std::vector<RequestShape> requests, std::uint64_t seed) {
  CaseSpec spec = spec_on_gpu({3, 64, 192, 64, 256}, SelectionRule::lightning(100), std::move(requests), seed);
  spec.with_sink = true;
  return spec;
}

/// A step that may be run many times, each time to an output of its own.
class StepKind {
 public:
  StepKind(const std::vector<RequestShape>& requests, std::uint64_t seed)
      : problem_(spec(requests, seed)), on_device_(problem_) {}

  [[nodiscard]] const Attention& attention() const { return problem_.attention(); }
  [[nodiscard]] Batch batch() const { return problem_.batch(); }
  [[nodiscard]] std::int64_t out_values() const {
    const Geometry& g = attention().geometry;
    return problem_.tokens() * g.num_heads * g.v_head_dim;
  }
  void attend(const Plan& plan, const DeviceArray<bfloat16>& out, const DeviceBuffer& workspace, Stream stream) const {
    const Geometry& g = attention().geometry;
    const View<bfloat16> view(out.data(), {problem_.tokens(), g.num_heads, g.v_head_dim});
    headrace::attend(plan, on_device_.weights(), on_device_.inputs(), {view, {}},
                     {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, stream);
  }

 private:
  AttentionCase problem_;
  CaseOnDevice on_device_;
};

/// Memory that one stream's steps take in turns.
struct Memory {
  explicit Memory(const Attention& attention, const Limits& limits)
      : tables(table_bound(attention, limits)), workspace(workspace_bound(attention, limits)) {}

  void upload(Plan& plan, Stream stream) const {
    headrace::upload(plan, {tables.data(), static_cast<std::size_t>(tables.size_bytes())}, stream);
  }

  DeviceBuffer tables;
  DeviceBuffer workspace;
};

struct Step {
  const StepKind* kind = nullptr;
  DeviceArray<bfloat16> out;
};

class ServingLoop : public testing::Test {
 protected:
  ServingLoop() {
    const std::vector<std::vector<RequestShape>> shapes{
        {{64, 0}}, {{1, 300}, {1, 90}, {1, 20}}, {{120, 200}}, {{33, 0}, {1, 500}, {64, 64}}, {{90, 30}, {40, 0}},
        {{1, 0}},  {{128, 0}, {1, 700}},         {{17, 90}}};
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      kinds_.push_back(std::make_unique<StepKind>(shapes[i], seed_ + i));
    }
    limits_.device.cuda = gpu();
    limits_.max_tokens = 160;
    limits_.max_seq_len = 800;
    gpu()->warm_up(attention());
  }

  [[nodiscard]] const Attention& attention() const { return kinds_.front()->attention(); }

  [[nodiscard]] std::vector<Step> random_steps(std::int64_t count) {
    std::vector<Step> steps(static_cast<std::size_t>(count));
    for (Step& step : steps) {
      step.kind = kinds_[static_cast<std::size_t>(random_.below(std::ssize(kinds_)))].get();
      step.out = DeviceArray<bfloat16>(step.kind->out_values());
      step.out.bytes().fill(std::byte{0xff});
    }
    return steps;
  }

  /// Queues one step after the other and waits only at the end.
  void serve(const std::vector<Step>& steps, bool captures, std::uint64_t seed, const Memory& memory,
             const Memory& graph_memory, const device::cuda::OwnedStream& stream) const {
    const device::cuda::CurrentDevice current(0);  // a thread of its own
    Random random(seed);
    std::optional<Plan> kept;
    for (std::size_t number = 0; number < steps.size(); ++number) {
      const Step& step = steps[number];
      const Batch batch = step.kind->batch();
      if (captures && number % 5 == 4) {
        std::optional<Plan> made = plan(attention(), batch, limits_);
        const CapturedGraph graph([&](Stream capturing) {
          graph_memory.upload(*made, capturing);
          step.kind->attend(*made, step.out, graph_memory.workspace, capturing);
        });
        made.reset();
        graph.replay();
        continue;
      }
      if (!kept || random.below(4) == 0) {
        kept = plan(attention(), batch, limits_);
      } else {
        kept->remake(batch);
      }
      memory.upload(*kept, stream);
      step.kind->attend(*kept, step.out, memory.workspace, stream);
      if (random.below(4) == 0) {
        kept.reset();
      }
    }
    device::cuda::synchronize(stream);
  }

  void run(std::int64_t steps_of_each) {
    const std::vector<Step> first = random_steps(steps_of_each);
    const std::vector<Step> second = random_steps(steps_of_each);
    std::vector<Memory> memory;
    for (int i = 0; i < 4; ++i) {
      memory.emplace_back(attention(), limits_);
    }
    const device::cuda::OwnedStream streams[2];
    device::cuda::synchronize(Stream{});  // they do not wait for what fills the outputs
    std::exception_ptr failure;
    std::thread other([&] {
      try {
        serve(second, true, seed_ + 100, memory[2], memory[3], streams[1]);
      } catch (...) {
        failure = std::current_exception();
      }
    });
    try {
      serve(first, false, seed_ + 101, memory[0], memory[1], streams[0]);
    } catch (...) {
      other.join();
      throw;
    }
    other.join();
    if (failure) {
      std::rethrow_exception(failure);
    }
    expect_alone(first);
    expect_alone(second);
  }

  /// Each step's output is that of the same step alone.
  void expect_alone(const std::vector<Step>& steps) const {
    const Memory memory(attention(), limits_);
    for (const std::unique_ptr<StepKind>& kind : kinds_) {
      const DeviceArray<bfloat16> out(kind->out_values());
      Plan made = plan(attention(), kind->batch(), limits_);
      memory.upload(made, Stream{});
      kind->attend(made, out, memory.workspace, Stream{});
      device::cuda::synchronize(Stream{});
      const std::vector<bfloat16> alone = out.download();
      for (std::size_t s = 0; s < steps.size(); ++s) {
        if (steps[s].kind == kind.get()) {
          const std::vector<bfloat16> served = steps[s].out.download();
          ASSERT_TRUE(std::ranges::equal(std::as_bytes(std::span(served)), std::as_bytes(std::span(alone))))
              << "step " << s;
        }
      }
    }
  }

  std::uint64_t seed_ = fresh_seed();
  Random random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
  std::vector<std::unique_ptr<StepKind>> kinds_;
  Limits limits_;
};

TEST_F(ServingLoop, AThousandStepsOnTwoThreadsAreThoseOneByOne) { run(500); }

// For compute-sanitizer, under which the other one takes too long.
TEST_F(ServingLoop, TwentyStepsOnTwoThreadsAreThoseOneByOne) { run(10); }

}  // namespace
}  // namespace headrace::test
