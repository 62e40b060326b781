// SPDX-License-Identifier: Apache-2.0
//
// attend on the GPU against the float64 oracle, on cases that the processor's tests are made from.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "captured_graph.h"
#include "headrace/cuda.h"
#include "headrace/error.h"
#include "on_device.h"
#include "support/attention_case.h"
#include "support/compare.h"
#include "support/output_buffer.h"
#include "support/random.h"

namespace headrace::test {
namespace {

using device::cuda::DeviceBuffer;

const std::shared_ptr<CudaDevice>& gpu() {
  static const auto device = std::make_shared<CudaDevice>(0);
  return device;
}

/// A case's inputs in the GPU's memory.
class CaseOnDevice {
 public:
  explicit CaseOnDevice(const AttentionCase& problem)
      : host_(problem.inputs()),
        weights_(problem.weights()),
        q_(host_.q.as<bfloat16>()),
        kv_b_proj_(weights_.kv_b_proj.as<bfloat16>()),
        sink_(weights_.sink),
        cache_(host_.cache.num_pages * host_.cache.page_stride),
        requests_(host_.requests),
        selection_(host_.selection) {
    cache_.upload({host_.cache.data, static_cast<std::size_t>(cache_.size_bytes())});
  }

  [[nodiscard]] Inputs inputs() const {
    Inputs inputs = host_;
    inputs.q = q_.view();
    inputs.cache.data = cache_.data();
    inputs.requests = requests_.get();
    inputs.selection = selection_.get();
    return inputs;
  }
  [[nodiscard]] Weights weights() const { return {kv_b_proj_.view(), sink_.view()}; }

 private:
  Inputs host_;
  Weights weights_;
  OnDevice<const bfloat16> q_;
  OnDevice<const bfloat16> kv_b_proj_;
  OnDevice<const float> sink_;
  DeviceBuffer cache_;
  RequestsOnDevice requests_;
  SelectionOnDevice selection_;
};

/// The bytes a view reaches over, and a copy of them on the GPU that can be brought back.
template <class T>
class OutputOnDevice {
 public:
  explicit OutputOnDevice(const View<T>& host) : host_(host) {
    std::int64_t last = 0;
    for (int i = 0; i < host.rank(); ++i) {
      last += (host.dim(i) - 1) * host.stride(i);
    }
    size_ = host.size() == 0 ? 0 : last + 1;
    memory_ = device::cuda::DeviceArray<T>(std::span<const T>(host.data(), static_cast<std::size_t>(size_)));
  }
  [[nodiscard]] View<T> view() const {
    return host_.empty() ? View<T>() : View<T>(memory_.data(), host_.rank(), host_.shape(), host_.strides());
  }
  void bring_back() const {
    const std::vector<T> values = memory_.download();
    std::memcpy(static_cast<void*>(host_.data()), values.data(), values.size() * sizeof(T));
  }

 private:
  View<T> host_;
  std::int64_t size_ = 0;
  device::cuda::DeviceArray<T> memory_;
};

class OutputsOnDevice {
 public:
  explicit OutputsOnDevice(const Outputs& host)
      : float32_(host.out.dtype() == DType::float32 ? host.out.as<float>() : View<float>()),
        bfloat16_(host.out.dtype() == DType::bfloat16 ? host.out.as<bfloat16>() : View<bfloat16>()),
        lse_(host.lse) {}
  [[nodiscard]] Outputs get() const {
    return {float32_.view().empty() ? AnyView(bfloat16_.view()) : AnyView(float32_.view()), lse_.view()};
  }
  void bring_back() const {
    float32_.bring_back();
    bfloat16_.bring_back();
    lse_.bring_back();
  }

 private:
  OutputOnDevice<float> float32_;
  OutputOnDevice<bfloat16> bfloat16_;
  OutputOnDevice<float> lse_;
};

Plan plan_on_gpu(const AttentionCase& problem, Path path, std::int64_t limit) {
  Limits limits;
  limits.workspace_bytes = limit;
  limits.device.cuda = gpu();
  Hints hints;
  hints.force = path;
  return plan(problem.attention(), problem.batch(), limits, hints);
}

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

OutputBuffer run_on_gpu(const AttentionCase& problem, Path path, std::int64_t limit) {
  const Plan made = plan_on_gpu(problem, path, limit);
  const CaseOnDevice on_device(problem);
  OutputBuffer result = problem.output_buffer();
  const OutputsOnDevice outputs(result.outputs());
  const DeviceBuffer workspace(std::max<std::int64_t>(made.workspace_bytes(), 1));
  workspace.fill(std::byte{0xff});
  const device::cuda::OwnedStream stream;
  attend(made, on_device.weights(), on_device.inputs(), outputs.get(),
         {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, stream);
  device::cuda::synchronize(stream);
  outputs.bring_back();
  return result;
}

const Geometry kGeometries[] = {
    {2, 64, 256, 0, 256}, {3, 64, 192, 64, 256}, {2, 64, 128, 64, 128}, {5, 64, 64, 64, 128}, {1, 64, 128, 0, 128}};

/// A random case over the geometries the kernel is compiled for.
CaseSpec random_spec(Random& random, bool covered) {
  const auto between = [&](std::int64_t least, std::int64_t most) { return least + random.below(most - least + 1); };
  CaseSpec spec;
  spec.geometry = kGeometries[between(0, 4)];
  constexpr CacheFormat kFormats[] = {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8,
                                      CacheFormat::fp8_ds_mla};
  spec.format = kFormats[between(0, 3)];
  if (spec.format == CacheFormat::fp8_ds_mla) {
    spec.geometry.kv_lora_rank = 512;
  }
  spec.compute = DType::bfloat16;
  spec.out = between(0, 1) == 0 ? DType::float32 : DType::bfloat16;
  std::int64_t longest = 1;
  for (std::int64_t n = between(1, 4); n > 0; --n) {
    constexpr std::int64_t kLengths[] = {0, 1, 63, 64, 65, 127, 128, 129, 200, 300};
    RequestShape shape{kLengths[between(0, 9)], between(0, 2) == 0 ? between(0, 700) : kLengths[between(0, 9)]};
    longest = std::max(longest, shape.seq_len());
    spec.requests.push_back(shape);
  }
  spec.page_size = between(1, 70);
  spec.row_gap = between(0, 2);
  spec.page_gap = between(0, 2);
  spec.gap = 8 * between(0, 2);
  spec.width = between(1, longest);
  spec.with_count = between(0, 1) == 0;
  spec.with_sink = between(0, 1) == 0;
  spec.rule = covered ? (between(0, 1) == 0 ? SelectionRule::none() : SelectionRule::lightning(longest))
                      : (between(0, 1) == 0 ? SelectionRule::opaque() : SelectionRule::lightning(between(1, longest)));
  spec.space = !covered && spec.rule.kind() == SelectionRule::Kind::opaque && between(0, 1) == 0
                   ? SelectionSpace::cache_slot
                   : SelectionSpace::request_position;
  spec.spread = between(0, 3) == 0 ? 3.0 : 1.0;
  spec.seed = static_cast<std::uint64_t>(random.below(std::int64_t{1} << 62));
  return spec;
}

/// Limits from the least workspace upwards.
std::int64_t random_limit(Random& random, const AttentionCase& problem, Path path) {
  if (random.below(2) == 0) {
    return kNoLimit;
  }
  const std::int64_t everything = plan_on_gpu(problem, path, kNoLimit).workspace_bytes();
  std::int64_t least = everything;
  for (std::int64_t step = everything; step > 0; step /= 2) {
    try {
      static_cast<void>(plan_on_gpu(problem, path, least - step));
      least -= step;
    } catch (const Error&) {
      // Too little.
    }
  }
  return least + random.below(everything - least + 1);
}

class Attend : public testing::TestWithParam<Path> {
 protected:
  std::uint64_t seed_ = fresh_seed();
  Random random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
};

int random_cases() {
  const char* chosen = std::getenv("HEADRACE_GPU_CASES");
  return chosen == nullptr ? 150 : std::atoi(chosen);
}

TEST_P(Attend, EqualsTheOracle) {
  double worst = 0.0;
  int cut = 0;
  for (int i = 0; i < random_cases(); ++i) {
    const CaseSpec spec = random_spec(random_, GetParam() == Path::dense_mha);
    SCOPED_TRACE(testing::Message() << spec);
    const AttentionCase problem(spec);
    const std::int64_t limit = random_limit(random_, problem, GetParam());
    SCOPED_TRACE(testing::Message() << "workspace limit " << limit);
    cut += limit == kNoLimit ? 0 : 1;
    const OutputBuffer result = run_on_gpu(problem, GetParam(), limit);
    const Comparison found = compare(problem, result, problem.oracle(), tolerance_of(DType::bfloat16));
    worst = std::max(worst, found.worst_row);
    ASSERT_FALSE(found.failure.has_value()) << *found.failure;
    ASSERT_FALSE(result.damage().has_value()) << *result.damage();
  }
  std::printf("%d cases, %d of them in slices or blocks: worst row %.2e\n", random_cases(), cut, worst);
}

TEST_P(Attend, BitsDoNotDependOnTheRestOfTheBatch) {
  for (int i = 0; i < 20; ++i) {
    CaseSpec spec = random_spec(random_, GetParam() == Path::dense_mha);
    spec.requests = {{200, 100}, {65, 0}, {1, 300}};
    spec.rule = GetParam() == Path::dense_mha ? SelectionRule::none() : SelectionRule::lightning(100);
    spec.space = SelectionSpace::request_position;
    SCOPED_TRACE(testing::Message() << spec);
    const AttentionCase problem(spec);
    const OutputBuffer first = run_on_gpu(problem, GetParam(), kNoLimit);
    const OutputBuffer second = run_on_gpu(problem, GetParam(), kNoLimit);
    ASSERT_EQ(first.bits(), second.bits()) << "two runs differ";
    AttentionCase spoilt(spec);
    spoilt.spoil(1);
    const OutputBuffer beside = run_on_gpu(spoilt, GetParam(), kNoLimit);
    ASSERT_EQ(first.bits(0, 200), beside.bits(0, 200)) << "a request with NaN keys spoils the one before it";
    ASSERT_EQ(first.bits(265, 266), beside.bits(265, 266)) << "a request with NaN keys spoils the one after it";
  }
}

TEST_P(Attend, CanBeCapturedAndReplayed) {
  CaseSpec spec = random_spec(random_, GetParam() == Path::dense_mha);
  spec.requests = {{129, 70}, {1, 0}, {64, 200}};
  spec.rule = GetParam() == Path::dense_mha ? SelectionRule::none() : SelectionRule::lightning(100);
  spec.space = SelectionSpace::request_position;
  const AttentionCase problem(spec);
  const Plan made = plan_on_gpu(problem, GetParam(), kNoLimit);
  const CaseOnDevice on_device(problem);
  OutputBuffer result = problem.output_buffer();
  const OutputsOnDevice outputs(result.outputs());
  const DeviceBuffer workspace(made.workspace_bytes());
  const CapturedGraph graph([&](Stream stream) {
    attend(made, on_device.weights(), on_device.inputs(), outputs.get(),
           {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, stream);
  });
  graph.replay();
  outputs.bring_back();
  EXPECT_EQ(result.bits(), run_on_gpu(problem, GetParam(), kNoLimit).bits());
}

INSTANTIATE_TEST_SUITE_P(MhaPaths, Attend, testing::Values(Path::dense_mha, Path::masked_mha),
                         [](const auto& path) { return std::string(name_of(path.param)); });

TEST(AttendOnCuda, OtherGeometriesAreRefusedWithTheReason) {
  CaseSpec spec;
  spec.geometry = {2, 64, 96, 64, 128};
  spec.compute = DType::bfloat16;
  spec.rule = SelectionRule::none();
  spec.requests = {{4, 0}};
  const AttentionCase problem(spec);
  try {
    static_cast<void>(plan_on_gpu(problem, Path::dense_mha, kNoLimit));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("160/128"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace headrace::test
