// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attention/oracle.h"
#include "bench.h"
#include "headrace/cuda.h"
#include "headrace/tensor.h"
#include "selection/generators.h"
#include "support/random.h"

namespace headrace::bench {
namespace {

using device::cuda::DeviceArray;
using device::cuda::DeviceBuffer;

constexpr Geometry kGlmFlash{16, 512, 256, 0, 256};
constexpr Geometry kDeepSeek{8, 512, 128, 64, 128};
constexpr std::int64_t kPageSize = 64;

/// A step: its shape, and how its selection is made.
struct Step {
  std::string name;
  Geometry geometry;
  std::vector<std::int32_t> query_len;
  std::string selection;  ///< for parse_generator; empty: no selection
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
};

/// Fills memory from a pool of random values, again and again.
void fill_random(std::span<bfloat16> to, double deviation, std::uint64_t seed) {
  constexpr std::size_t kPool = 1000003;
  test::Random random(seed);
  std::vector<bfloat16> pool(std::min(kPool, to.size()));
  for (bfloat16& value : pool) {
    value = bfloat16(static_cast<float>(deviation) * random.normal());
  }
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = pool[i % pool.size()];
  }
}

std::span<bfloat16> values_of(Tensor& tensor) {
  return {reinterpret_cast<bfloat16*>(tensor.data()), static_cast<std::size_t>(tensor.size_bytes() / 2)};
}

/// A step's data on the host, which the oracle reads, and on the GPU.
class Problem {
 public:
  Problem(std::shared_ptr<CudaDevice> gpu, const Step& step) : gpu_(std::move(gpu)), step_(step) {
    const Geometry& g = step.geometry;
    attention_.geometry = g;
    attention_.scale = 1.0 / std::sqrt(static_cast<double>(g.qk_head_dim()));
    query_start_ = {0};
    for (const std::int32_t n : step.query_len) {
      query_start_.push_back(query_start_.back() + n);
    }
    tokens_ = query_start_.back();
    row_bytes_ = cache_row_bytes(CacheFormat::bfloat16, g);
    std::int64_t pages = 0;
    for (const std::int32_t n : step.query_len) {
      pages = std::max<std::int64_t>(pages, (n + kPageSize - 1) / kPageSize);
    }
    const auto requests = static_cast<std::int64_t>(step.query_len.size());
    for (std::int64_t page = 0; page < requests * pages; ++page) {
      block_table_.push_back(static_cast<std::int32_t>(page));
    }
    pages_ = pages;
    q_ = Tensor(DType::bfloat16, {tokens_, g.num_heads, g.qk_head_dim()});
    weights_ = Tensor(DType::bfloat16, {g.num_heads * (g.qk_nope_head_dim + g.v_head_dim), g.kv_lora_rank});
    cache_ = Tensor(DType::bfloat16, {requests * pages * kPageSize, g.latent_dim()});
    fill_random(values_of(q_), 1.0, 1);
    fill_random(values_of(weights_), 1.0 / std::sqrt(static_cast<double>(g.kv_lora_rank)), 2);
    fill_random(values_of(cache_), 1.0, 3);
    make_selection();
    for (const auto& [device, host] :
         {std::pair{&device_q_, &q_}, {&device_weights_, &weights_}, {&device_cache_, &cache_}}) {
      *device = DeviceBuffer(host->size_bytes());
      device->upload({host->data(), static_cast<std::size_t>(host->size_bytes())});
    }
    device_start_ = DeviceArray<std::int32_t>(query_start_);
    device_seq_len_ = DeviceArray<std::int32_t>(step.query_len);
    device_table_ = DeviceArray<std::int32_t>(block_table_);
    out_ = DeviceArray<bfloat16>(tokens_ * g.num_heads * g.v_head_dim);
  }

  /// With its tables on the GPU, when the stream has got there; they are good until the next plan of this problem.
  [[nodiscard]] Plan make_plan(std::optional<Path> force, Stream stream = {}) const {
    Limits limits;
    limits.device.cuda = gpu_;
    limits.workspace_bytes = step_.limit;
    Hints hints;
    hints.force = force;
    Plan made = plan(attention_, {step_.query_len, step_.query_len, true}, limits, hints);
    if (tables_.size_bytes() < made.table_bytes()) {
      tables_ = DeviceBuffer(made.table_bytes());
    }
    upload(made, {tables_.data(), static_cast<std::size_t>(tables_.size_bytes())}, stream);
    return made;
  }

  void run(const Plan& made, const DeviceBuffer& workspace, Stream stream) const {
    const Geometry& g = step_.geometry;
    attend(made,
           {View<const bfloat16>(reinterpret_cast<const bfloat16*>(device_weights_.data()),
                                 {weights_.dim(0), weights_.dim(1)}),
            {}},
           inputs(reinterpret_cast<const bfloat16*>(device_q_.data()), device_cache_.data(), device_start_.data(),
                  device_seq_len_.data(), device_table_.data(), device_index_.data(), device_count_.data()),
           {View<bfloat16>(out_.data(), {tokens_, g.num_heads, g.v_head_dim}), {}},
           {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, stream);
  }

  /// Keys that each query token selects; empty: every causal one.
  [[nodiscard]] std::span<const std::int32_t> count() const noexcept { return count_; }

  /// The worst relative error of rows spread over the step.
  [[nodiscard]] double worst_row() const {
    constexpr std::int64_t kSamples = 24;
    const Geometry& g = step_.geometry;
    std::vector<attention::OracleQuery> queries;
    for (std::int64_t i = 0; i < kSamples; ++i) {
      const std::int64_t token = i * (tokens_ - 1) / (kSamples - 1);
      const auto after = std::upper_bound(query_start_.begin(), query_start_.end(), static_cast<std::int32_t>(token));
      const std::int64_t request = after - query_start_.begin() - 1;
      queries.push_back({request, token, token - *(after - 1)});
    }
    const Weights weights{std::as_const(weights_).view(), {}};
    const Inputs host = inputs(reinterpret_cast<const bfloat16*>(q_.data()), cache_.data(), query_start_.data(),
                               step_.query_len.data(), block_table_.data(), index_.data(), count_.data());
    const auto rows = attention::oracle_rows(attention_, weights, host, queries);
    const std::vector<bfloat16> out = out_.download();
    double worst = 0.0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::int64_t values = g.num_heads * g.v_head_dim;
      double difference = 0.0;
      double size = 0.0;
      for (std::int64_t d = 0; d < values; ++d) {
        const double expected = rows[i].out[static_cast<std::size_t>(d)];
        const double got = static_cast<float>(out[static_cast<std::size_t>(queries[i].token * values + d)]);
        difference += (got - expected) * (got - expected);
        size += expected * expected;
      }
      const double error = std::sqrt(difference / size);
      worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    }
    return worst;
  }

 private:
  void make_selection() {
    attention_.rule = SelectionRule::none();
    if (step_.selection.empty()) {
      return;
    }
    const selection::Generator generator = selection::parse_generator(step_.selection);
    attention_.rule = generator.kind == selection::Generator::Kind::pooled
                          ? SelectionRule::kpool(generator.topk, generator.pool, true)
                          : SelectionRule::lightning(generator.topk);
    width_ = generator.width();
    index_.resize(static_cast<std::size_t>(tokens_ * width_));
    count_.resize(static_cast<std::size_t>(tokens_));
    for (std::size_t b = 0; b < step_.query_len.size(); ++b) {
      const std::int64_t first = query_start_[b];
      generator.fill(static_cast<std::int64_t>(b), 0,
                     View<std::int32_t>(index_.data() + first * width_, {step_.query_len[b], width_}),
                     View<std::int32_t>(count_.data() + first, {step_.query_len[b]}));
    }
    device_index_ = DeviceArray<std::int32_t>(index_);
    device_count_ = DeviceArray<std::int32_t>(count_);
  }

  [[nodiscard]] Inputs inputs(const bfloat16* q, const std::byte* cache, const std::int32_t* start,
                              const std::int32_t* seq_len, const std::int32_t* table, const std::int32_t* index,
                              const std::int32_t* count) const {
    const Geometry& g = step_.geometry;
    const auto requests = static_cast<std::int64_t>(step_.query_len.size());
    Inputs inputs;
    inputs.q = View<const bfloat16>(q, {tokens_, g.num_heads, g.qk_head_dim()});
    inputs.cache = {cache, requests * pages_, kPageSize, kPageSize * row_bytes_, row_bytes_};
    inputs.requests = {View<const std::int32_t>(start, {requests + 1}), View<const std::int32_t>(seq_len, {requests}),
                       View<const std::int32_t>(table, {requests, pages_})};
    if (width_ > 0) {
      inputs.selection.index = View<const std::int32_t>(index, {tokens_, width_});
      inputs.selection.count = View<const std::int32_t>(count, {tokens_});
    }
    return inputs;
  }

  std::shared_ptr<CudaDevice> gpu_;
  Step step_;
  Attention attention_;
  std::int64_t tokens_ = 0;
  std::int64_t row_bytes_ = 0;
  std::int64_t pages_ = 0;
  std::int64_t width_ = 0;
  std::vector<std::int32_t> query_start_;
  std::vector<std::int32_t> block_table_;
  std::vector<std::int32_t> index_;
  std::vector<std::int32_t> count_;
  Tensor q_;
  Tensor weights_;
  Tensor cache_;
  DeviceBuffer device_q_;
  DeviceBuffer device_weights_;
  DeviceBuffer device_cache_;
  DeviceArray<std::int32_t> device_start_;
  DeviceArray<std::int32_t> device_seq_len_;
  DeviceArray<std::int32_t> device_table_;
  DeviceArray<std::int32_t> device_index_;
  DeviceArray<std::int32_t> device_count_;
  DeviceArray<bfloat16> out_;
  mutable DeviceBuffer tables_;
};

/// The paths that a plan takes, in the order in which they first occur.
std::string paths_of(const Plan& made) {
  std::vector<std::string_view> names;
  for (const RequestPlan& request : made.requests()) {
    for (const Segment& segment : request.segments) {
      if (std::find(names.begin(), names.end(), name_of(segment.path)) == names.end()) {
        names.push_back(name_of(segment.path));
      }
    }
  }
  return fmt::format("{}", fmt::join(names, " + "));
}

bool bench_step(const Bench& bench, const std::shared_ptr<CudaDevice>& gpu, const Step& step,
                std::optional<Path> force) {
  constexpr double kWorst = 2e-2;
  const Problem problem(gpu, step);
  const Plan made = problem.make_plan(force, bench.stream());
  const DeviceBuffer workspace(made.workspace_bytes());
  workspace.fill(std::byte{0xff});
  bench.time(fmt::format("attend {}, {}", step.name, paths_of(made)), 0.0, needed_flops(made, problem.count()),
             [&](Stream stream) { problem.run(made, workspace, stream); });
  const double worst = problem.worst_row();
  fmt::print("    workspace {:.0f} MiB, worst sampled row {:.1e}{}\n",
             static_cast<double>(made.workspace_bytes()) / 1048576.0, worst, worst <= kWorst ? "" : "  WRONG");
  return worst <= kWorst;
}

/// Plan, attend and wait for lengths never used before, beside the median of the next five times.
void bench_new_lengths(const Bench& bench, const std::shared_ptr<CudaDevice>& gpu) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> ratios;
  const DeviceBuffer workspace(std::int64_t{2} << 30);
  for (std::int32_t i = 0; i < 20; ++i) {
    const Problem problem(gpu, {"", kGlmFlash, std::vector<std::int32_t>(2, 4001 + 97 * i), ""});
    std::vector<double> ms;
    for (int repetition = 0; repetition < 6; ++repetition) {
      const auto begin = Clock::now();
      const Plan made = problem.make_plan({}, bench.stream());
      problem.run(made, workspace, bench.stream());
      device::cuda::synchronize(bench.stream());
      ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    }
    const double first = ms.front();
    std::sort(ms.begin() + 1, ms.end());
    ratios.push_back(first / ms[3]);
  }
  std::sort(ratios.begin(), ratios.end());
  fmt::print("20 lengths never used before, first time over the median of the next five: median {:.2f}, worst {:.2f}\n",
             ratios[ratios.size() / 2], ratios.back());
}

}  // namespace

bool bench_attend(const Bench& bench) {
  const auto gpu = std::make_shared<CudaDevice>(0);
  const std::vector<std::int32_t> eight(8, 2048);
  Geometry eight_heads = kGlmFlash;
  eight_heads.num_heads = 8;
  constexpr std::int64_t kLimit = std::int64_t{256} << 20;
  bool right = true;
  const auto time = [&](const Step& step, std::optional<Path> force) {
    right = bench_step(bench, gpu, step, force) && right;
  };
  const auto none = std::numeric_limits<std::int64_t>::max();
  time({"8 x 2048, 16 heads 256/256", kGlmFlash, eight, "", none}, {});
  for (const std::int32_t n : {8192, 16384}) {
    const std::vector<std::int32_t> lengths(static_cast<std::size_t>(16384 / n), n);
    const std::string name = fmt::format("{} x {}, 16 heads 256/256", 16384 / n, n);
    time({name, kGlmFlash, lengths, "", none}, {});
    time({name + ", drift 0.9", kGlmFlash, lengths, "drift:0.9", none}, Path::masked_mha);
  }
  time({"1 x 16384, 16 heads 256/256, pooled 4 0.9", kGlmFlash, {16384}, "pooled:4:0.9", none}, {});
  time(
      {"8 x 4096, 16 heads 256/256, pooled 4 0.9", kGlmFlash, std::vector<std::int32_t>(8, 4096), "pooled:4:0.9", none},
      {});
  time({"1 x 131072, 8 heads 256/256, 256 MiB", eight_heads, {131072}, "drift:0.9", kLimit}, Path::masked_mha);
  time({"1 x 131072, 8 heads 128+64/128, 256 MiB", kDeepSeek, {131072}, "", kLimit}, {});
  bench_new_lengths(bench, gpu);
  return right;
}

}  // namespace headrace::bench
