// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bar_chart.h"
#include "bench_gpu.h"
#include "bench_routing.h"
#include "commands.h"
#include "device/parallel.h"
#include "headrace/error.h"
#include "headrace/profile.h"
#include "numbers.h"
#include "onednn_product.h"
#include "output.h"
#include "progress.h"
#include "routing/trial.h"
#include "table.h"

namespace headrace::app {
namespace {

constexpr std::int64_t kProductSize = 2048;
constexpr std::int64_t kTopk = 2048;

/// One measurement: a path on a step of equal requests, at GLM-5.3-Flash's head dims (NoPE, 256/256, R 512).
struct Case {
  const char* name;
  Path path;
  std::int64_t heads;
  std::int32_t tokens;
  const char* selection;  ///< a generator, or "" for a rule that covers every row
};

constexpr Case kCases[] = {
    {"dense MHA, 16 heads, 2048 tokens", Path::dense_mha, 16, 2048, ""},
    {"dense MHA, 16 heads, 4096 tokens", Path::dense_mha, 16, 4096, ""},
    {"masked MHA, 16 heads, 4096 tokens, drift 0.9", Path::masked_mha, 16, 4096, "drift:0.9"},
    {"top-k MQA, 64 heads, 4096 tokens, drift 0.9", Path::topk_mqa, 64, 4096, "drift:0.9"},
    {"top-k MQA, 16 heads, 8192 tokens, drift 0.9", Path::topk_mqa, 16, 8192, "drift:0.9"},
    {"top-k MQA, 8 heads, 8192 tokens, drift 0.9", Path::topk_mqa, 8, 8192, "drift:0.9"},
    {"top-k MQA, 8 heads, 8192 tokens, uniform", Path::topk_mqa, 8, 8192, "uniform"},
};

struct Result {
  std::string name;
  double gflop = 0.0;
  std::vector<double> ms;

  [[nodiscard]] double quantile(double share) const {
    std::vector<double> sorted = ms;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<std::size_t>(std::lround(share * static_cast<double>(sorted.size() - 1)))];
  }
  [[nodiscard]] double gflops() const { return gflop / quantile(0.5) * 1e3; }
};

Attention attention_for(const Case& one, DType compute) {
  Attention attention;
  attention.geometry = {
      .num_heads = one.heads, .kv_lora_rank = 512, .qk_nope_head_dim = 256, .qk_rope_head_dim = 0, .v_head_dim = 256};
  attention.rule = *one.selection == '\0' ? SelectionRule::none() : SelectionRule::opaque(kTopk);
  attention.scale = 1.0 / 16.0;
  attention.compute = compute;
  attention.format = compute == DType::float32 ? CacheFormat::float32 : CacheFormat::bfloat16;
  return attention;
}

/// Work that the result needs, whatever a path computes beyond it: the path's own product (up-projection of every key,
/// or absorption), and scores and values of selected pairs only.
double useful_flops(const Case& one, const Geometry& g, std::int64_t pairs) {
  const double product = 2.0 * one.tokens * static_cast<double>(g.num_heads * g.kv_lora_rank) *
                         static_cast<double>(g.qk_nope_head_dim + g.v_head_dim);
  const std::int64_t dims =
      one.path == Path::topk_mqa ? 2 * g.kv_lora_rank + g.qk_rope_head_dim : g.qk_head_dim() + g.v_head_dim;
  return product + 2.0 * static_cast<double>(pairs) * static_cast<double>(g.num_heads * dims);
}

class Measurement {
 public:
  Measurement(const Case& one, DType compute, int threads)
      : trial_(attention_for(one, compute), std::vector<routing::TrialRequest>{{one.tokens, 0}}, generator(one),
               threads, 0),
        plan_(trial_.make_plan(one.path)) {
    result_.name = one.name;
    result_.gflop = useful_flops(one, plan_.attention().geometry, trial_.selected_pairs()) * 1e-9;
  }

  void warm_up() { trial_.run_ms(plan_); }
  void run() { result_.ms.push_back(trial_.run_ms(plan_)); }
  [[nodiscard]] const Result& result() const noexcept { return result_; }

 private:
  static std::optional<selection::Generator> generator(const Case& one) {
    if (*one.selection == '\0') {
      return std::nullopt;
    }
    selection::Generator made = selection::parse_generator(one.selection);
    made.topk = kTopk;
    return made;
  }

  routing::Trial trial_;
  Plan plan_;
  Result result_;
};

std::vector<Result> measure(const Options& options) {
  const int threads = device::thread_count(options.threads);
  OneDnnProduct product(options.compute, kProductSize, threads);
  Result yardstick{fmt::format("oneDNN {0} x {0} x {0} product", kProductSize), product.flops() * 1e-9, {}};
  std::vector<std::unique_ptr<Measurement>> measurements;
  Progress progress("bench", static_cast<std::int64_t>(std::size(kCases)) * (options.repetitions + 1));
  for (const Case& one : kCases) {
    measurements.push_back(std::make_unique<Measurement>(one, options.compute, threads));
    measurements.back()->warm_up();
    progress.advance(1);
  }
  product.run_ms();
  // Interleaved, so that whatever else the machine does meets every case alike.
  for (int i = 0; i < options.repetitions; ++i) {
    yardstick.ms.push_back(product.run_ms());
    for (const auto& measurement : measurements) {
      measurement->run();
      progress.advance(1);
    }
  }
  std::vector<Result> results{yardstick};
  for (const auto& measurement : measurements) {
    results.push_back(measurement->result());
  }
  return results;
}

void print_results_json(const Options& options, const std::vector<Result>& results) {
  Json document = new_document();
  document["version"] = version_text();
  document["device"] = "cpu";
  document["machine"] = machine_name();
  document["threads"] = device::thread_count(options.threads);
  document["dtype"] = name_of(options.compute);
  document["repetitions"] = options.repetitions;
  for (const Result& result : results) {
    document["results"].push_back({{"name", result.name},
                                   {"gflop", number(result.gflop)},
                                   {"median_ms", number(result.quantile(0.5))},
                                   {"quartile_ms", {number(result.quantile(0.25)), number(result.quantile(0.75))}},
                                   {"gflops", number(result.gflops())},
                                   {"of_onednn", number(result.gflops() / results.front().gflops())}});
  }
  print_json(document);
}

void print_results(const Options& options, const std::vector<Result>& results) {
  fmt::print("{}, {} threads, {}; medians of {} interleaved repetitions\n", machine_name(),
             device::thread_count(options.threads), name_of(options.compute), options.repetitions);
  fmt::print("GFLOP: the path's product and the selected pairs only\n\n");
  using enum Table::Align;
  Table table(
      {{"case"}, {"median", right}, {"quartiles", right}, {"GFLOP", right}, {"GFLOP/s", right}, {"of oneDNN", right}});
  for (const Result& result : results) {
    table.add({result.name, format_ms(result.quantile(0.5)),
               fmt::format("{} - {}", format_ms(result.quantile(0.25)), format_ms(result.quantile(0.75))),
               fmt::format("{:.1f}", result.gflop), fmt::format("{:.0f}", result.gflops()),
               fmt::format("{:.2f}", result.gflops() / results.front().gflops())});
  }
  fmt::print("{}", table.to_string());
}

void draw(const Options& options, const std::vector<Result>& results) {
  std::vector<Bar> bars;
  bars.reserve(results.size());
  for (const Result& result : results) {
    bars.push_back(
        {result.name, result.gflops(),
         fmt::format("{:.0f} GFLOP/s, {:.2f}", result.gflops(), result.gflops() / results.front().gflops())});
  }
  write_bar_chart(options.svg, fmt::format("Rates in {}, and as a share of oneDNN's", name_of(options.compute)), bars);
}

}  // namespace

ExitStatus run_bench(const Options& options) {
  if (options.bench_routing && options.gpu) {
    throw Error("--routing", "--device cpu", device_text(options));
  }
  if (!options.svg.empty()) {
    expect_writable(options.svg);
  }
  if (options.gpu) {
    return run_bench_gpu(options);
  }
  if (options.bench_routing) {
    return run_bench_routing(options);
  }
  const std::vector<Result> results = measure(options);
  if (options.json) {
    print_results_json(options, results);
  } else {
    print_results(options, results);
  }
  if (!options.svg.empty()) {
    draw(options, results);
  }
  return kAllWell;
}

}  // namespace headrace::app
