// SPDX-License-Identifier: Apache-2.0
#include "bench_routing.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/parallel.h"
#include "numbers.h"
#include "output.h"
#include "progress.h"
#include "routing/trial.h"
#include "table.h"
#include "target.h"

namespace headrace::app {
namespace {

constexpr std::int64_t kTopk = 2048;
// Short requests are run more often: what else the machine does disturbs them most.
constexpr double kMeasuredMs = 100.0;
constexpr int kLeastRuns = 2;
constexpr int kMostRuns = 20;

struct Listed {
  std::int64_t heads;
  std::int32_t query_len;
  std::int32_t context_len;
};

/// Single requests from decoding to long prefill, at the head dims of GLM-5.3-Flash, on ranks of 16 and of 4 heads.
constexpr Listed kListed[] = {
    {16, 1, 100},     {16, 1, 2000},  {16, 1, 8192},    {16, 1, 32768},   {16, 4, 4096},   {16, 16, 4096},
    {16, 64, 1000},   {16, 64, 8192}, {16, 128, 2048},  {16, 256, 0},     {16, 256, 4096}, {16, 512, 0},
    {16, 512, 2048},  {16, 1024, 0},  {16, 1024, 1024}, {16, 1024, 4096}, {16, 2048, 0},   {16, 2048, 2048},
    {16, 3000, 1096}, {16, 4096, 0},  {4, 4096, 0},     {4, 2048, 2048},  {4, 1024, 8192}, {4, 64, 16384},
};

struct Outcome {
  Listed listed{};
  Path path = Path::topk_mqa;
  double predicted_ms = 0.0;
  double routed_ms = 0.0;
  std::array<std::optional<double>, 3> alone_ms;  ///< of each path that can run, in the order of kPaths

  [[nodiscard]] Path fastest() const {
    Path best = Path::topk_mqa;
    double least = std::numeric_limits<double>::max();
    for (const Path path : kPaths) {
      const std::optional<double>& ms = alone_ms[static_cast<std::size_t>(path)];
      if (ms && *ms < least) {
        least = *ms;
        best = path;
      }
    }
    return best;
  }
  [[nodiscard]] double over_fastest() const { return routed_ms / *alone_ms[static_cast<std::size_t>(fastest())]; }
  /// How far the prediction is off, either way, as a factor.
  [[nodiscard]] double off_by() const { return std::max(predicted_ms / routed_ms, routed_ms / predicted_ms); }
};

Outcome run(const Listed& listed, const Options& options, const Profile& profile) {
  Attention attention;
  attention.geometry = {.num_heads = listed.heads,
                        .kv_lora_rank = 512,
                        .qk_nope_head_dim = 256,
                        .qk_rope_head_dim = 0,
                        .v_head_dim = 256};
  attention.rule = SelectionRule::lightning(kTopk);
  attention.scale = 1.0 / 16.0;
  attention.compute = options.compute;
  attention.format = options.compute == DType::float32 ? CacheFormat::float32 : CacheFormat::bfloat16;
  selection::Generator generator = selection::parse_generator("drift:0.9");
  generator.topk = kTopk;
  const routing::TrialRequest request[] = {{listed.query_len, listed.context_len}};
  routing::Trial trial(attention, request, generator, device::thread_count(options.threads), 0);

  Outcome outcome;
  outcome.listed = listed;
  const Plan routed = trial.make_plan(std::nullopt, profile);
  outcome.path = routed.requests()[0].path;
  outcome.predicted_ms = routed.requests()[0].predicted_ms;
  std::vector<std::pair<const Plan*, double>> plans{{&routed, std::numeric_limits<double>::max()}};
  std::array<std::optional<Plan>, 3> forced;
  for (const Path path : kPaths) {
    const std::int64_t end = listed.context_len + listed.query_len;
    if (unmet_requirements(path, attention, listed.context_len, end, true).empty()) {
      forced[static_cast<std::size_t>(path)] = trial.make_plan(path, profile);
      plans.emplace_back(&*forced[static_cast<std::size_t>(path)], std::numeric_limits<double>::max());
    }
  }
  const double warm_up_ms = trial.run_ms(routed);
  const int runs = std::clamp(static_cast<int>(kMeasuredMs / warm_up_ms), kLeastRuns, kMostRuns);
  for (int i = 0; i < runs; ++i) {
    for (auto& [plan, best] : plans) {
      best = std::min(best, trial.run_ms(*plan));
    }
  }
  outcome.routed_ms = plans.front().second;
  for (std::size_t i = 1; i < plans.size(); ++i) {
    outcome.alone_ms[static_cast<std::size_t>(plans[i].first->requests()[0].path)] = plans[i].second;
  }
  return outcome;
}

/// A table that grows by a row with every request. Times are in ms.
class GrowingTable {
 public:
  explicit GrowingTable(const Profile& profile) : table_(columns()) {
    fmt::print("{}", wrapped("rates of: " + profile.name, output_width(), 2));
    fmt::print("lightning({}), selections drift 0.9; best of {} to {} interleaved runs, in ms\n\n{}", kTopk, kLeastRuns,
               kMostRuns, table_.titles());
    std::fflush(stdout);
  }

  void add(const Outcome& outcome) const {
    std::vector<std::string> cells{fmt::format("{}", outcome.listed.heads),
                                   fmt::format("{}+{}", outcome.listed.query_len, outcome.listed.context_len),
                                   std::string(name_of(outcome.path)), format_digits(outcome.predicted_ms),
                                   format_digits(outcome.routed_ms)};
    for (const std::optional<double>& ms : outcome.alone_ms) {
      cells.push_back(ms ? format_digits(*ms) : "-");
    }
    cells.push_back(fmt::format("{:.2f}", outcome.over_fastest()));
    fmt::print("{}", table_.line(std::move(cells)));
    std::fflush(stdout);
  }

 private:
  static std::vector<Table::Column> columns() {
    using enum Table::Align;
    constexpr std::size_t kRequestWidth = 9;  // "1024+8192"
    constexpr std::size_t kPathWidth = 10;    // "masked_mha"
    return {{"heads", right},
            {"request", right, kRequestWidth},
            {"routed to", left, kPathWidth},
            {"pre-\ndicted", right},
            {"routed", right},
            {"dense\nalone", right},
            {"masked\nalone", right},
            {"topk\nalone", right},
            {"of\nfastest", right}};
  }

  Table table_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

ExitStatus run_bench_routing(const Options& options) {
  const Profile profile = chosen_target(options).profile;
  std::vector<Outcome> outcomes;
  std::optional<GrowingTable> table;
  if (!options.json) {
    table.emplace(profile);
  }
  Progress progress("routing", std::size(kListed));
  for (const Listed& listed : kListed) {
    outcomes.push_back(run(listed, options, profile));
    progress.advance(1);
    progress.clear();
    if (table) {
      table->add(outcomes.back());
    }
  }
  double worst = 0.0;
  std::vector<double> off;
  std::array<int, 3> wins{};
  for (const Outcome& outcome : outcomes) {
    worst = std::max(worst, outcome.over_fastest());
    off.push_back(outcome.off_by());
    ++wins[static_cast<std::size_t>(outcome.fastest())];
  }
  if (options.json) {
    Json document = new_document();
    document["version"] = version_text();
    document["profile"] = profile.name;
    document["dtype"] = name_of(options.compute);
    document["worst_over_fastest"] = number(worst);
    document["median_off_by"] = number(median(off));
    for (const Outcome& outcome : outcomes) {
      Json entry = {{"heads", outcome.listed.heads},
                    {"query_len", outcome.listed.query_len},
                    {"context_len", outcome.listed.context_len},
                    {"path", name_of(outcome.path)},
                    {"predicted_ms", number(outcome.predicted_ms)},
                    {"measured_ms", number(outcome.routed_ms)},
                    {"over_fastest", number(outcome.over_fastest())}};
      for (const Path path : kPaths) {
        const std::optional<double>& ms = outcome.alone_ms[static_cast<std::size_t>(path)];
        entry["alone_ms"][std::string(name_of(path))] = ms ? number(*ms) : Json(nullptr);
      }
      document["requests"].push_back(std::move(entry));
    }
    print_json(document);
    return kAllWell;
  }
  fmt::print("\nrouted time at most {:.2f} of the fastest path's\n", worst);
  fmt::print("fastest: dense_mha {}, masked_mha {}, topk_mqa {}\n", wins[0], wins[1], wins[2]);
  fmt::print("predictions off by a factor of {:.2f} at the median\n", median(off));
  return kAllWell;
}

}  // namespace headrace::app
