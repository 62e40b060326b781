// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "attention/paths/path.h"
#include "device/parallel.h"
#include "headrace/profile.h"
#include "routing/trial.h"

namespace headrace {
namespace {

using routing::Trial;
using routing::TrialRequest;

constexpr int kRepetitions = 3;
constexpr std::uint64_t kSeed = 1;

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

/// The fastest of a few runs: what the machine can do, not what else it was doing.
double best_seconds(Trial& trial, Path path) {
  const Plan plan = trial.make_plan(path);
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < kRepetitions; ++i) {
    best = std::min(best, trial.run_ms(plan) * 1e-3);
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

/// Solves a x + b y = t, c x + d y = u for the times x and y of a unit of work each. Where noise makes one of them
/// negative, it is given a tenth of the time and the other the rest.
void solve(double a, double b, double t, double c, double d, double u, double& x, double& y) {
  const double determinant = a * d - b * c;
  x = (t * d - b * u) / determinant;
  y = (a * u - t * c) / determinant;
  if (x <= 0.0) {
    x = 0.1 * t / a;
    y = 0.9 * u / d;
  } else if (y <= 0.0) {
    x = 0.9 * t / a;
    y = 0.1 * u / d;
  }
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
void measure_mha(Profile& profile, DType compute, int threads) {
  const Attention attention = attention_with(16, SelectionRule::none(), compute);
  const TrialRequest few[] = {{64, 1984}};
  const TrialRequest many[] = {{1024, 1024}};
  Trial few_rows(attention, few, std::nullopt, threads, kSeed);
  Trial many_rows(attention, many, std::nullopt, threads, kSeed);
  const double few_seconds = best_seconds(few_rows, Path::dense_mha);
  const double many_seconds = best_seconds(many_rows, Path::dense_mha);
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
  const double longer = best_seconds(masked_rows, Path::masked_mha) - many_seconds;
  const double entries = work_of(masked_rows, masked, Path::masked_mha).mask_keys;
  profile.mask_gkeys = 1e-9 * entries / std::max(longer, 0.002 * many_seconds) / threads;
}

/// Gathering and the MQA kernel: two heads is mostly the one, sixty-four mostly the other. Requests of one token share
/// nothing, so every selected key is gathered.
void measure_mqa(Profile& profile, DType compute, int threads) {
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
    seconds[i] = best_seconds(trial, Path::topk_mqa) -
                 work[i].product_flops / (profile.product_gflops * 1e9 * threads) -
                 work[i].mask_keys / (profile.mask_gkeys * 1e9 * threads);
  }
  double gather = 0.0;
  double mqa = 0.0;
  solve(work[0].gathered, work[0].mqa_flops, seconds[0], work[1].gathered, work[1].mqa_flops, seconds[1], gather, mqa);
  profile.gather_mkeys = 1e-6 / (gather * 512.0) / threads;
  profile.mqa_gflops = 1e-9 / mqa / threads;
}

}  // namespace

Profile measure_profile(DType compute, int threads) {
  Profile profile;
  profile.name = machine_name();
  profile.compute = compute;
  profile.threads = device::thread_count(threads);
  profile.bandwidth_gbytes = measured_bandwidth();
  measure_mha(profile, compute, profile.threads);
  measure_mqa(profile, compute, profile.threads);
  profile.validate();
  return profile;
}

}  // namespace headrace
