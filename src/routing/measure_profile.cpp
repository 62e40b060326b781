// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "attention/paths/path.h"
#include "device/parallel.h"
#include "headrace/error.h"
#include "headrace/profile.h"
#include "routing/trial.h"

namespace headrace {
namespace {

using routing::Trial;
using routing::TrialRequest;

constexpr int kRepetitions = 3;
constexpr int kMostRounds = 3;
constexpr std::uint64_t kSeed = 1;

// Two rounds that differ by more, or kernels that differ more from the library's products, were disturbed.
constexpr double kRoundsDiffer = 1.25;
constexpr double kFastestKernel = 4.0;
constexpr double kSlowestKernel = 1.0 / 20.0;

Attention attention_with(std::int64_t heads, const SelectionRule& rule, DType compute) {
  Attention attention;
  attention.geometry = {
      .num_heads = heads, .kv_lora_rank = 512, .qk_nope_head_dim = 128, .qk_rope_head_dim = 64, .v_head_dim = 128};
  attention.rule = rule;
  attention.scale = 0.07;
  attention.compute = compute;
  attention.format = compute == DType::float32 ? CacheFormat::float32 : CacheFormat::bfloat16;
  return attention;
}

/// Counts runs and tells their share. Most machines agree with themselves after two rounds, so that the third has the
/// last tenth.
class Ticks {
 public:
  explicit Ticks(const std::function<void(double)>& progress) : progress_(progress) {}

  void begin_round(int round) {
    round_ = round;
    runs_ = 0;
  }
  void tick() {
    ++runs_;
    if (progress_) {
      constexpr double kOfTwo = 0.45;
      const double share = std::min(1.0, static_cast<double>(runs_) / kRunsInRound);
      progress_(round_ < 2 ? kOfTwo * (round_ + share) : 2.0 * kOfTwo + (1.0 - 2.0 * kOfTwo) * share);
    }
  }

 private:
  static constexpr int kTrials = 5;
  static constexpr int kRunsInRound = kTrials * kRepetitions;

  const std::function<void(double)>& progress_;
  int round_ = 0;
  int runs_ = 0;
};

/// The fastest of a few runs: what the machine can do, not what else it was doing.
double best_seconds(Trial& trial, Path path, Ticks& ticks) {
  const Plan plan = trial.make_plan(path);
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < kRepetitions; ++i) {
    best = std::min(best, trial.run_ms(plan) * 1e-3);
    ticks.tick();
  }
  return best;
}

attention::Work work_of(const Trial& trial, const Attention& attention, Path path) {
  attention::Work sum;
  const Plan plan = trial.make_plan(path);
  for (const RequestPlan& request : plan.requests()) {
    const attention::Work one = attention::cpu_path(path).count_work(
        attention, request.context_len, request.context_len + request.query_len, request.query_len);
    sum.product_flops += one.product_flops;
    sum.mha_flops += one.mha_flops;
    sum.mqa_flops += one.mqa_flops;
    sum.gathered += one.gathered;
    sum.mask_keys += one.mask_keys;
  }
  return sum;
}

/// Solves a x + b y = t, c x + d y = u for the times x and y of a unit of work each. Noise can make one of them
/// negative.
void solve(double a, double b, double t, double c, double d, double u, double& x, double& y) {
  const double determinant = a * d - b * c;
  x = (t * d - b * u) / determinant;
  y = (a * u - t * c) / determinant;
}

double measured_bandwidth() {
  std::vector<char> from(std::size_t{64} << 20, 1);
  std::vector<char> to(from.size());
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < kRepetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    std::memcpy(to.data(), from.data(), from.size());
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 2.0 * static_cast<double>(from.size()) / best * 1e-9;
}

/// The up-projection and the MHA kernel: few rows over many keys is mostly the one, many rows mostly the other.
void measure_mha(Profile& profile, DType compute, int threads, Ticks& ticks) {
  const Attention attention = attention_with(16, SelectionRule::none(), compute);
  const TrialRequest few[] = {{64, 1984}};
  const TrialRequest many[] = {{1024, 1024}};
  Trial few_rows(attention, few, std::nullopt, threads, kSeed);
  Trial many_rows(attention, many, std::nullopt, threads, kSeed);
  const double few_seconds = best_seconds(few_rows, Path::dense_mha, ticks);
  const double many_seconds = best_seconds(many_rows, Path::dense_mha, ticks);
  const attention::Work few_work = work_of(few_rows, attention, Path::dense_mha);
  const attention::Work many_work = work_of(many_rows, attention, Path::dense_mha);
  double product = 0.0;
  double mha = 0.0;
  solve(few_work.product_flops, few_work.mha_flops, few_seconds, many_work.product_flops, many_work.mha_flops,
        many_seconds, product, mha);
  profile.product_gflops = 1e-9 / product / threads;
  profile.mha_gflops = 1e-9 / mha / threads;

  // The same rows under a mask: what it takes longer is the mask.
  const Attention masked = attention_with(16, SelectionRule::opaque(1024), compute);
  selection::Generator generator = selection::parse_generator("uniform");
  generator.topk = 1024;
  Trial masked_rows(masked, many, generator, threads, kSeed);
  const double longer = best_seconds(masked_rows, Path::masked_mha, ticks) - many_seconds;
  const double entries = work_of(masked_rows, masked, Path::masked_mha).mask_keys;
  profile.mask_gkeys = 1e-9 * entries / std::max(longer, 0.002 * many_seconds) / threads;
}

/// Gathering and the MQA kernel: two heads is mostly the one, sixty-four mostly the other. Requests of one token share
/// nothing, so every selected key is gathered.
void measure_mqa(Profile& profile, DType compute, int threads, Ticks& ticks) {
  constexpr std::int64_t kKeys = 1024;
  double seconds[2] = {};
  attention::Work work[2];
  const std::int64_t heads[2] = {2, 64};
  const std::size_t requests[2] = {64, 16};
  for (int i = 0; i < 2; ++i) {
    const Attention attention = attention_with(heads[i], SelectionRule::opaque(kKeys), compute);
    const std::vector<TrialRequest> single(requests[i], TrialRequest{1, kKeys * 2 - 1});
    selection::Generator generator = selection::parse_generator("uniform");
    generator.topk = kKeys;
    Trial trial(attention, single, generator, threads, kSeed);
    work[i] = work_of(trial, attention, Path::topk_mqa);
    seconds[i] = best_seconds(trial, Path::topk_mqa, ticks) -
                 work[i].product_flops / (profile.product_gflops * 1e9 * threads) -
                 work[i].mask_keys / (profile.mask_gkeys * 1e9 * threads);
  }
  double gather = 0.0;
  double mqa = 0.0;
  solve(work[0].gathered, work[0].mqa_flops, seconds[0], work[1].gathered, work[1].mqa_flops, seconds[1], gather, mqa);
  profile.gather_mkeys = 1e-6 / (gather * 512.0) / threads;
  profile.mqa_gflops = 1e-9 / mqa / threads;
}

bool plausible(const Profile& profile) {
  const auto positive = [](double rate) { return std::isfinite(rate) && rate > 0.0; };
  const auto beside_products = [&](double rate) {
    return rate >= kSlowestKernel * profile.product_gflops && rate <= kFastestKernel * profile.product_gflops;
  };
  return positive(profile.product_gflops) && beside_products(profile.mha_gflops) &&
         beside_products(profile.mqa_gflops) && positive(profile.gather_mkeys) && positive(profile.mask_gkeys) &&
         positive(profile.bandwidth_gbytes);
}

/// Whether two plausible rounds found the same rates. Masks are left out: their time is a small difference of large
/// ones, and as small a part of what is predicted.
bool agree(const Profile& a, const Profile& b) {
  constexpr double Profile::*kCompared[] = {&Profile::product_gflops, &Profile::mha_gflops, &Profile::mqa_gflops,
                                            &Profile::gather_mkeys};
  return std::all_of(std::begin(kCompared), std::end(kCompared), [&](double Profile::*rate) {
    return std::max(a.*rate, b.*rate) <= kRoundsDiffer * std::min(a.*rate, b.*rate);
  });
}

Profile measure_once(DType compute, int threads, Ticks& ticks) {
  Profile profile;
  profile.name = machine_name();
  profile.compute = compute;
  profile.threads = threads;
  profile.bandwidth_gbytes = measured_bandwidth();
  measure_mha(profile, compute, threads, ticks);
  measure_mqa(profile, compute, threads, ticks);
  return profile;
}

}  // namespace

Profile measure_profile(DType compute, int threads, const std::function<void(double)>& progress) {
  if (threads < 0 || threads > kMaxThreads) {
    throw Error("threads", fmt::format("a number in [0, {}], 0 for all of the machine's", kMaxThreads),
                std::to_string(threads));
  }
  Ticks ticks(progress);
  const int count = device::thread_count(threads);
  std::optional<Profile> before;
  for (int round = 0; round < kMostRounds; ++round) {
    ticks.begin_round(round);
    Profile now = measure_once(compute, count, ticks);
    if (!plausible(now)) {
      before.reset();
    } else if (before && agree(*before, now)) {
      return now;
    } else {
      before = now;
    }
  }
  // Too much else runs here. The nominal name says that nothing was measured.
  Profile nominal = Profile::nominal_cpu(compute);
  nominal.threads = count;
  return nominal;
}

}  // namespace headrace
