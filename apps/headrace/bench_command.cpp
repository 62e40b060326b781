// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
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
  double yardstick_gflops = 0.0;  ///< of oneDNN's product, which ran in turns with it

  [[nodiscard]] double quantile(double share) const {
    std::vector<double> sorted = ms;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<std::size_t>(std::lround(share * static_cast<double>(sorted.size() - 1)))];
  }
  [[nodiscard]] double gflops() const { return gflop / quantile(0.5) * 1e3; }
  [[nodiscard]] double of_yardstick() const { return gflops() / yardstick_gflops; }
  /// How far the quartiles are apart, as a share of the median.
  [[nodiscard]] double spread() const { return (quantile(0.75) - quantile(0.25)) / quantile(0.5); }
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

std::string yardstick_name() { return fmt::format("oneDNN {0} x {0} x {0} product", kProductSize); }

class Measurement {
 public:
  Measurement(const Case& one, DType compute, int threads)
      : trial_(attention_for(one, compute), std::vector<routing::TrialRequest>{{one.tokens, 0}}, generator(one),
               threads, 0),
        plan_(trial_.make_plan(one.path)) {
    result_.name = one.name;
    result_.gflop = useful_flops(one, plan_.attention().geometry, trial_.selected_pairs()) * 1e-9;
  }

  double run_ms() { return trial_.run_ms(plan_); }
  /// What is measured, without times yet.
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

/// Measures oneDNN's product, then each case in turns with it: what else the machine does meets both alike. Each result
/// is handed over as soon as it is there.
void measure(const Options& options, Progress& progress, const std::function<void(const Result&)>& on_result) {
  const int threads = device::thread_count(options.threads);
  OneDnnProduct product(options.compute, kProductSize, threads);
  Result yardstick{yardstick_name(), product.flops() * 1e-9, {}, 0.0};
  product.run_ms();
  for (int i = 0; i < options.repetitions; ++i) {
    yardstick.ms.push_back(product.run_ms());
  }
  yardstick.yardstick_gflops = yardstick.gflops();
  progress.advance(1);
  on_result(yardstick);
  for (const Case& one : kCases) {
    Measurement measurement(one, options.compute, threads);
    measurement.run_ms();
    Result result = measurement.result();
    Result beside = yardstick;
    beside.ms.clear();
    for (int i = 0; i < options.repetitions; ++i) {
      beside.ms.push_back(product.run_ms());
      result.ms.push_back(measurement.run_ms());
      progress.advance(1);
    }
    result.yardstick_gflops = beside.gflops();
    on_result(result);
  }
}

Json result_json(const Result& result) {
  return {{"name", result.name},
          {"gflop", number(result.gflop)},
          {"median_ms", number(result.quantile(0.5))},
          {"quartile_ms", {number(result.quantile(0.25)), number(result.quantile(0.75))}},
          {"gflops", number(result.gflops())},
          {"of_onednn", number(result.of_yardstick())}};
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
    document["results"].push_back(result_json(result));
  }
  print_json(document);
}

/// A table that grows by a row with every result.
class GrowingTable {
 public:
  explicit GrowingTable(const Options& options) : table_(columns()) {
    const std::string machine = fmt::format("{}, {}, {}; medians of {}", machine_name(),
                                            counted(device::thread_count(options.threads), "thread"),
                                            name_of(options.compute), counted(options.repetitions, "repetition"));
    fmt::print("{}", wrapped(machine, output_width(), 2));
    fmt::print("GFLOP: the path's product and the selected pairs only.\n");
    fmt::print("spread: how far the quartiles are apart, as a share of the median.\n\n{}", table_.titles());
    std::fflush(stdout);
  }

  void add(const Result& result) const {
    fmt::print(
        "{}", table_.line({result.name, format_ms(result.quantile(0.5)), fmt::format("{:.0f} %", 100 * result.spread()),
                           fmt::format("{:.0f}", result.gflops()), fmt::format("{:.2f}", result.of_yardstick())}));
    std::fflush(stdout);
  }

 private:
  static std::vector<Table::Column> columns() {
    using enum Table::Align;
    std::size_t longest = yardstick_name().size();
    for (const Case& one : kCases) {
      longest = std::max(longest, std::string_view(one.name).size());
    }
    return {{"case", left, longest},
            {"median", right, kTimeWidth},
            {"spread", right},
            {"GFLOP/s", right},
            {"of\noneDNN", right}};
  }

  static constexpr std::size_t kTimeWidth = 8;  // "0.123 ms"
  Table table_;
};

void draw(const Options& options, const std::vector<Result>& results) {
  std::vector<Bar> bars;
  bars.reserve(results.size());
  for (const Result& result : results) {
    bars.push_back(
        {result.name, result.gflops(), fmt::format("{:.0f} GFLOP/s, {:.2f}", result.gflops(), result.of_yardstick())});
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
  std::vector<Result> results;
  std::optional<GrowingTable> table;
  if (!options.json) {
    table.emplace(options);
  }
  Progress progress("bench", 1 + static_cast<std::int64_t>(std::size(kCases)) * options.repetitions);
  measure(options, progress, [&](const Result& result) {
    results.push_back(result);
    progress.clear();
    if (table) {
      table->add(result);
    }
  });
  if (options.json) {
    print_results_json(options, results);
  }
  if (!options.svg.empty()) {
    draw(options, results);
  }
  return kAllWell;
}

}  // namespace headrace::app
