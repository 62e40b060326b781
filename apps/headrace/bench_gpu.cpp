// SPDX-License-Identifier: Apache-2.0
#include "bench_gpu.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bar_chart.h"
#include "headrace/error.h"
#include "model_source.h"
#include "numbers.h"
#include "output.h"
#include "progress.h"
#include "stages.h"
#include "step_selection.h"
#include "table.h"
#include "target.h"

namespace headrace::app {
namespace {

constexpr const char* kModel = "glm-5.3-flash";
constexpr std::int64_t kTp = 4;

/// A path on a step of equal prompts, at 16 heads of GLM-5.3-Flash.
struct Case {
  const char* name;
  Path path;
  const char* batch;
  const char* selection;  ///< a generator, or "" for a rule that covers every row
};

constexpr Case kCases[] = {
    {"dense MHA, 8 x 2048", Path::dense_mha, "8x2048", ""},
    {"dense MHA, 2 x 8192", Path::dense_mha, "2x8192", ""},
    {"masked MHA, 2 x 8192, drift 0.9", Path::masked_mha, "2x8192", "drift:0.9"},
    {"dense MHA, 1 x 16384", Path::dense_mha, "16k", ""},
    {"masked MHA, 1 x 16384, drift 0.9", Path::masked_mha, "16k", "drift:0.9"},
    {"top-k MQA, 2 x 8192, drift 0.9", Path::topk_mqa, "2x8192", "drift:0.9"},
};

enum Stage : std::size_t { kProject, kAppend, kAttend, kOutput, kStages };
constexpr std::array<const char*, kStages> kStageNames = {"project", "append", "attend", "output"};

struct Result {
  std::string name;
  double gflop = 0.0;  ///< of attend
  std::array<std::vector<double>, kStages> ms;

  [[nodiscard]] double quantile(Stage stage, double share) const {
    std::vector<double> sorted = ms[stage];
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<std::size_t>(std::lround(share * static_cast<double>(sorted.size() - 1)))];
  }
  [[nodiscard]] double gflops() const { return gflop / quantile(kAttend, 0.5) * 1e3; }
};

/// Work that attention's result needs: the path's product, and scores and values of selected pairs only.
double attend_flops(const Case& one, const Geometry& g, std::int64_t tokens, std::int64_t pairs) {
  const double product = 2.0 * static_cast<double>(tokens) * static_cast<double>(g.num_heads * g.kv_lora_rank) *
                         static_cast<double>(g.qk_nope_head_dim + g.v_head_dim);
  const std::int64_t dims =
      one.path == Path::topk_mqa ? 2 * g.kv_lora_rank + g.qk_rope_head_dim : g.qk_head_dim() + g.v_head_dim;
  return product + 2.0 * static_cast<double>(pairs) * static_cast<double>(g.num_heads * dims);
}

/// Runs cases on one layer with random weights.
class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        target_(chosen_target(options)),
        model_(find_model(kModel, kTp, Reading::engines)),
        number_(model_.config.first_attention_layer()),
        stages_(make_stages(model_, number_, options, target_.device)) {}

  [[nodiscard]] const Device& device() const noexcept { return target_.device; }

  /// The reasons why a case cannot run.
  [[nodiscard]] std::vector<std::string> unmet(const Case& one) const {
    return unmet_requirements(one.path, attention(one), 0, 1, true, target_.device);
  }

  [[nodiscard]] Result run(const Case& one) {
    Options options = options_;
    options.batch = parse_batch_spec(one.batch);
    options.force = one.path;
    const PageTable table(options.batch, options.seed);
    const Step step(table, query_pieces(options.batch, 0, 0));
    const Plan plan = plan_step(attention(one), step.batch(), options, target_);
    const Tensor hidden =
        random_hidden(step, model_.config.hidden_size, options.compute, options.seed, number_, options.threads);
    const SelectionBuffer selection = select(one, options.batch, step.tokens());
    stages_->begin(table, options.format(), plan.workspace_bytes());
    stages_->open(step, hidden.view());
    stages_->use(selection.selection());
    stages_->prepare(plan, /*with_lse=*/false);

    Result result;
    result.name = one.name;
    result.gflop =
        1e-9 * attend_flops(one, model_.config.geometry, step.tokens(), selected_pairs(selection, options.batch));
    run_once(plan);  // loads kernels
    for (int i = 0; i < options.repetitions; ++i) {
      const std::array<double, kStages> ms = run_once(plan);
      for (std::size_t stage = 0; stage < kStages; ++stage) {
        result.ms[stage].push_back(ms[stage]);
      }
    }
    stages_->close();
    return result;
  }

 private:
  [[nodiscard]] Attention attention(const Case& one) const {
    Attention attention = stages_->attention(options_.format());
    attention.rule = *one.selection == '\0' ? SelectionRule::none() : SelectionRule::opaque(attention.rule.width());
    return attention;
  }

  [[nodiscard]] SelectionBuffer select(const Case& one, const std::vector<RequestSpec>& batch,
                                       std::int64_t tokens) const {
    if (*one.selection == '\0') {
      return {};
    }
    selection::Generator generator = selection::parse_generator(one.selection);
    generator.topk = model_.config.indexer->topk;
    SelectionBuffer buffer{Tensor(DType::int32, {tokens, generator.width()}), Tensor(DType::int32, {tokens})};
    std::int64_t first = 0;
    for (std::size_t b = 0; b < batch.size(); ++b) {
      const std::int64_t end = first + batch[b].query_len;
      generator.fill(static_cast<std::int64_t>(b), 0, buffer.index.view_as<std::int32_t>().slice(first, end),
                     buffer.count.view_as<std::int32_t>().slice(first, end));
      first = end;
    }
    return buffer;
  }

  static std::int64_t selected_pairs(const SelectionBuffer& selection, const std::vector<RequestSpec>& batch) {
    std::int64_t pairs = 0;
    if (selection.count.empty()) {
      for (const RequestSpec& request : batch) {
        pairs += request.query_len * (request.query_len + 1) / 2;
      }
      return pairs;
    }
    const View<const std::int32_t> count = selection.count.view_as<std::int32_t>();
    for (std::int64_t t = 0; t < count.dim(0); ++t) {
      pairs += count(t);
    }
    return pairs;
  }

  std::array<double, kStages> run_once(const Plan& plan) {
    std::array<double, kStages> ms{};
    stages_->time(ms[kProject], [&] { stages_->project(/*scoring=*/false); });
    stages_->time(ms[kAppend], [&] { stages_->append(); });
    stages_->time(ms[kAttend], [&] { stages_->attend(plan); });
    stages_->time(ms[kOutput], [&] { stages_->output(); });
    return ms;
  }

  const Options& options_;
  Target target_;
  ModelSource model_;
  std::int64_t number_;
  std::unique_ptr<Stages> stages_;
};

Json result_json(const Result& result) {
  Json entry = {{"name", result.name},
                {"gflop", number(result.gflop)},
                {"median_ms", number(result.quantile(kAttend, 0.5))},
                {"quartile_ms", {number(result.quantile(kAttend, 0.25)), number(result.quantile(kAttend, 0.75))}},
                {"gflops", number(result.gflops())}};
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    entry["stages_ms"][kStageNames[stage]] = number(result.quantile(static_cast<Stage>(stage), 0.5));
  }
  return entry;
}

/// A table that grows by a row with every result.
class GrowingTable {
 public:
  GrowingTable(const Options& options, const Device& device) : table_(columns()) {
    const std::string run =
        fmt::format("{}, {}; a layer of {}, --tp {}; medians of {}", describe(device), name_of(options.compute), kModel,
                    kTp, counted(options.repetitions, "repetition"));
    fmt::print("{}", wrapped(run, output_width(), 2));
    fmt::print("FLOP: the path's product and the selected pairs only. Times are in ms.\n\n{}", table_.titles());
    std::fflush(stdout);
  }

  void add(const Result& result) const {
    std::vector<std::string> cells{result.name};
    for (std::size_t stage = 0; stage < kStages; ++stage) {
      cells.push_back(format_digits(result.quantile(static_cast<Stage>(stage), 0.5)));
    }
    cells.push_back(fmt::format("{:.0f}", result.gflops() / 1e3));
    fmt::print("{}", table_.line(std::move(cells)));
    std::fflush(stdout);
  }

 private:
  static std::vector<Table::Column> columns() {
    using enum Table::Align;
    std::size_t longest = 0;
    for (const Case& one : kCases) {
      longest = std::max(longest, std::string_view(one.name).size());
    }
    std::vector<Table::Column> columns{{"case", left, longest}};
    for (const char* stage : kStageNames) {
      columns.push_back({stage, right});
    }
    columns.push_back({"TFLOP/s\nof attend", right});
    return columns;
  }

  Table table_;
};

void draw(const Options& options, const std::vector<Result>& results) {
  std::vector<Bar> bars;
  bars.reserve(results.size());
  for (const Result& result : results) {
    bars.push_back({result.name, result.gflops(), fmt::format("{:.0f} TFLOP/s", result.gflops() / 1e3)});
  }
  write_bar_chart(options.svg, "Rates of attention on " + device_text(options), bars);
}

}  // namespace

ExitStatus run_bench_gpu(const Options& options) {
  Bench bench(options);
  std::vector<Result> results;
  Json skipped = Json::array();
  std::optional<GrowingTable> table;
  if (!options.json) {
    table.emplace(options, bench.device());
  }
  Progress progress("bench", std::size(kCases));
  for (const Case& one : kCases) {
    const std::vector<std::string> unmet = bench.unmet(one);
    if (unmet.empty()) {
      results.push_back(bench.run(one));
      progress.clear();
      if (table) {
        table->add(results.back());
      }
    } else {
      skipped.push_back({{"name", one.name}, {"unmet", unmet}});
    }
    progress.advance(1);
  }
  if (options.json) {
    Json document = new_document();
    document["version"] = version_text();
    document["device"] = name_of(bench.device());
    document["machine"] = describe(bench.device());
    document["dtype"] = name_of(options.compute);
    document["repetitions"] = options.repetitions;
    document["results"] = Json::array();
    for (const Result& result : results) {
      document["results"].push_back(result_json(result));
    }
    document["skipped"] = std::move(skipped);
    print_json(document);
  } else {
    for (const Json& one : skipped) {
      const std::string why = fmt::format("{} cannot run: {}", one.at("name").get<std::string>(),
                                          join(one.at("unmet").get<std::vector<std::string>>()));
      fmt::print("{}", wrapped(why, output_width(), 2));
    }
  }
  if (!options.svg.empty()) {
    draw(options, results);
  }
  return kAllWell;
}

}  // namespace headrace::app
