// SPDX-License-Identifier: Apache-2.0
//
// What a step takes of the host: planning, uploading and calling, idle and while the GPU has 100 ms of work before it.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "bench.h"
#include "captured_graph.h"
#include "device_work.h"
#include "headrace/cuda.h"

namespace headrace::bench {
namespace {

using device::cuda::DeviceArray;
using device::cuda::DeviceBuffer;
using Clock = std::chrono::steady_clock;

constexpr Geometry kGlmFlash{16, 512, 256, 0, 256};
constexpr std::int64_t kTokens = 4096;  // of a step
constexpr std::int32_t kContext = 500;
constexpr std::int64_t kPageSize = 64;
constexpr int kRepetitions = 50;
constexpr double kOccupiedMs = 100.0;

/// A step of requests of one length, over a cache of one page; every value is 0.
class Step {
 public:
  Step(const std::shared_ptr<CudaDevice>& gpu, std::int64_t requests, Path path)
      : attention_{.geometry = kGlmFlash,
                   .rule = path == Path::dense_mha ? SelectionRule::none() : SelectionRule::kpool(2048, 4, true),
                   .scale = 1.0 / 16.0,
                   .compute = DType::bfloat16,
                   .format = CacheFormat::bfloat16} {
    const auto queries = static_cast<std::int32_t>(kTokens / requests);
    std::vector<std::int32_t> query_start{0};
    for (std::int64_t b = 0; b < requests; ++b) {
      // No request is like the one before it.
      query_len_.push_back(queries);
      seq_len_.push_back(queries + kContext + static_cast<std::int32_t>(b % 7));
      query_start.push_back(query_start.back() + queries);
    }
    pages_ = (seq_len_[0] + 7 + kPageSize - 1) / kPageSize;
    query_start_ = DeviceArray<std::int32_t>(query_start);
    device_seq_len_ = DeviceArray<std::int32_t>(seq_len_);
    table_ = zeros<std::int32_t>(requests * pages_);
    cache_ = zeros<bfloat16>(kPageSize * kGlmFlash.latent_dim());
    weights_ = zeros<bfloat16>(kGlmFlash.num_heads * (kGlmFlash.qk_nope_head_dim + kGlmFlash.v_head_dim) *
                               kGlmFlash.kv_lora_rank);
    q_ = zeros<bfloat16>(kTokens * kGlmFlash.num_heads * kGlmFlash.qk_head_dim());
    out_ = zeros<bfloat16>(kTokens * kGlmFlash.num_heads * kGlmFlash.v_head_dim);
    index_ = zeros<std::int32_t>(kTokens * attention_.rule.width());
    limits_.device.cuda = gpu;
    hints_.force = path;
    plan_ = headrace::plan(attention_, batch(), limits_, hints_);
    tables_ = DeviceBuffer(plan_.table_bytes());
    workspace_ = DeviceBuffer(plan_.workspace_bytes());
  }

  void remake() { plan_.remake(batch()); }
  void upload(Stream stream) {
    headrace::upload(plan_, {tables_.data(), static_cast<std::size_t>(tables_.size_bytes())}, stream);
  }
  void attend(Stream stream) const {
    const Geometry& g = kGlmFlash;
    const auto requests = static_cast<std::int64_t>(query_len_.size());
    const std::int64_t tokens = query_len_[0] * requests;
    Inputs inputs;
    inputs.q = View<const bfloat16>(q_.data(), {tokens, g.num_heads, g.qk_head_dim()});
    inputs.cache = {reinterpret_cast<const std::byte*>(cache_.data()),
                    1,
                    kPageSize,
                    kPageSize * g.latent_dim() * 2,
                    g.latent_dim() * 2,
                    1.0F,
                    0};
    inputs.requests = {View<const std::int32_t>(query_start_.data(), {requests + 1}),
                       View<const std::int32_t>(device_seq_len_.data(), {requests}),
                       View<const std::int32_t>(table_.data(), {requests, pages_})};
    if (attention_.rule.width() > 0) {
      inputs.selection.index = View<const std::int32_t>(index_.data(), {tokens, attention_.rule.width()});
    }
    headrace::attend(
        plan_,
        {View<const bfloat16>(weights_.data(), {g.num_heads * (g.qk_nope_head_dim + g.v_head_dim), g.kv_lora_rank}),
         {}},
        inputs, {View<bfloat16>(out_.data(), {tokens, g.num_heads, g.v_head_dim}), {}},
        {workspace_.data(), static_cast<std::size_t>(workspace_.size_bytes())}, stream);
  }
  [[nodiscard]] std::int64_t table_bytes() const noexcept { return plan_.table_bytes(); }

 private:
  template <class T>
  static DeviceArray<T> zeros(std::int64_t n) {
    DeviceArray<T> array(std::max<std::int64_t>(n, 1));
    array.bytes().fill(std::byte{0});
    return array;
  }
  [[nodiscard]] Batch batch() const { return {query_len_, seq_len_, true}; }

  Attention attention_;
  Limits limits_;
  Hints hints_;
  std::vector<std::int32_t> query_len_;
  std::vector<std::int32_t> seq_len_;
  std::int64_t pages_ = 0;
  DeviceArray<std::int32_t> query_start_;
  DeviceArray<std::int32_t> device_seq_len_;
  DeviceArray<std::int32_t> table_;
  DeviceArray<bfloat16> cache_;
  DeviceArray<bfloat16> weights_;
  DeviceArray<bfloat16> q_;
  DeviceArray<bfloat16> out_;
  DeviceArray<std::int32_t> index_;
  Plan plan_;
  DeviceBuffer tables_;
  DeviceBuffer workspace_;
};

/// Microseconds on the host's clock.
struct Times {
  std::vector<double> plan;
  std::vector<double> upload;
  std::vector<double> attend;
};

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

Times time_steps(Step& step, Stream stream, bool occupied) {
  Times times;
  const auto timed = [](std::vector<double>& to, const auto& work) {
    const auto begin = Clock::now();
    work();
    to.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  };
  if (occupied) {
    occupy(stream, kOccupiedMs);
  }
  for (int i = 0; i < kRepetitions; ++i) {
    timed(times.plan, [&] { step.remake(); });
    timed(times.upload, [&] { step.upload(stream); });
    timed(times.attend, [&] { step.attend(stream); });
    if (!occupied) {
      device::cuda::synchronize(stream);
    }
  }
  device::cuda::synchronize(stream);
  return times;
}

void bench_requests(const std::shared_ptr<CudaDevice>& gpu, std::int64_t requests, Path path, Stream stream) {
  Step step(gpu, requests, path);
  step.upload(stream);
  step.attend(stream);
  device::cuda::synchronize(stream);
  const test::CapturedGraph graph([&](Stream captured) { step.attend(captured); });
  const auto queued = static_cast<double>(graph.nodes());
  const std::int64_t free_before = free_bytes();
  for (const bool occupied : {false, true}) {
    Times times = time_steps(step, stream, occupied);
    const double attend = median(times.attend);
    fmt::print("{:>8} {:<11} {:<9} {:>9.1f} {:>9.1f} {:>9.1f} {:>6} {:>12.2f} {:>12}\n", requests, name_of(path),
               occupied ? "100 ms" : "idle", median(times.plan), median(times.upload), attend, graph.nodes(),
               attend / queued, step.table_bytes());
  }
  if (const std::int64_t taken = free_before - free_bytes(); taken != 0) {
    fmt::print("    device memory taken meanwhile: {} bytes\n", taken);
  }
  std::fflush(stdout);
}

}  // namespace

void bench_host() {
  const auto gpu = std::make_shared<CudaDevice>(0);
  const device::cuda::OwnedStream stream;
  fmt::print("medians of {} steps of {} tokens in microseconds on the host's clock\n", kRepetitions, kTokens);
  fmt::print("{:>8} {:<11} {:<9} {:>9} {:>9} {:>9} {:>6} {:>12} {:>12}\n", "requests", "path", "queued", "plan",
             "upload", "attend", "ops", "attend / op", "table bytes");
  for (const Path path : kPaths) {
    for (const std::int64_t requests : {1, 64, 256, 1024}) {
      bench_requests(gpu, requests, path, stream);
    }
  }
}

}  // namespace headrace::bench
