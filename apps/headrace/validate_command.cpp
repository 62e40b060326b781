// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "commands.h"
#include "headrace/recording.h"
#include "headrace/validate.h"
#include "output.h"
#include "table.h"

namespace headrace::app {
namespace {

struct LayerFindings {
  std::int64_t layer = 0;
  std::int64_t tokens = 0;
  bool has_selection = false;
  SelectionCounts selection;
  std::int64_t non_finite_keys = 0;  ///< tokens whose hidden state, from which the key is made, is not finite
  std::int64_t non_finite_outputs = 0;

  [[nodiscard]] bool clean() const noexcept {
    return selection.clean() && selection.empty_rows == 0 && non_finite_keys == 0 && non_finite_outputs == 0;
  }
};

std::int64_t non_finite_rows(const Tensor& tensor) {
  const View<const float> values = tensor.view_as<float>();
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < values.dim(0); ++i) {
    bool finite = true;
    for (std::int64_t j = 0; j < values.dim(1); ++j) {
      finite = finite && std::isfinite(values(i, j));
    }
    rows += finite ? 0 : 1;
  }
  return rows;
}

LayerFindings examine(const RecordedLayer& recorded) {
  LayerFindings findings;
  findings.layer = recorded.layer;
  findings.tokens = recorded.hidden_states.dim(0);
  findings.non_finite_keys = non_finite_rows(recorded.hidden_states);
  findings.non_finite_outputs = non_finite_rows(recorded.output);
  findings.has_selection = !recorded.topk_indices.empty();
  if (findings.has_selection) {
    const auto tokens = static_cast<std::int32_t>(findings.tokens);
    const std::int32_t query_start[] = {0, tokens};
    const std::int32_t seq_len[] = {tokens};
    const std::int32_t block_table[] = {0};
    const Requests requests{View<const std::int32_t>(query_start, {2}), View<const std::int32_t>(seq_len, {1}),
                            View<const std::int32_t>(block_table, {1, 1})};
    findings.selection = count_selection(
        {recorded.topk_indices.view_as<std::int32_t>(), {}, SelectionSpace::request_position}, requests);
  }
  return findings;
}

Json to_json(const LayerFindings& findings) {
  Json json = {{"layer", findings.layer}, {"tokens", findings.tokens}, {"clean", findings.clean()}};
  if (findings.has_selection) {
    const SelectionCounts& s = findings.selection;
    json["selection"] = {{"rows", s.rows},
                         {"attended", s.attended},
                         {"unused", s.unused},
                         {"negative", s.negative},
                         {"out_of_range", s.out_of_range},
                         {"future", s.future},
                         {"repeated", s.repeated},
                         {"empty_rows", s.empty_rows},
                         {"rows_past_count", s.rows_past_count},
                         {"bad_counts", s.bad_counts}};
  } else {
    json["selection"] = nullptr;
  }
  json["non_finite_keys"] = findings.non_finite_keys;
  json["non_finite_outputs"] = findings.non_finite_outputs;
  return json;
}

void print_table(const std::vector<LayerFindings>& layers) {
  using enum Table::Align;
  Table table({{"layer", right},
               {"tokens", right},
               {"attended", right},
               {"unused", right},
               {"negative", right},
               {"out of\nrange", right},
               {"future", right},
               {"repeated", right},
               {"empty\nrows", right},
               {"past\ncount", right},
               {"bad\ncounts", right},
               {"non-finite\nkeys", right},
               {"non-finite\noutputs", right}});
  for (const LayerFindings& one : layers) {
    const auto text = [&](std::int64_t count) { return one.has_selection ? fmt::format("{}", count) : "-"; };
    const SelectionCounts& s = one.selection;
    table.add({fmt::format("{}", one.layer), fmt::format("{}", one.tokens), text(s.attended), text(s.unused),
               text(s.negative), text(s.out_of_range), text(s.future), text(s.repeated), text(s.empty_rows),
               text(s.rows_past_count), text(s.bad_counts), fmt::format("{}", one.non_finite_keys),
               fmt::format("{}", one.non_finite_outputs)});
  }
  fmt::print("{}", table.to_string(output_width()));
}

}  // namespace

ExitStatus run_validate(const Options& options) {
  std::vector<LayerFindings> layers;
  bool clean = true;
  for (const RecordedLayer& recorded : load_recording(options.recording)) {
    layers.push_back(examine(recorded));
    clean = clean && layers.back().clean();
  }
  if (options.json) {
    Json document = new_document();
    document["clean"] = clean;
    document["layers"] = Json::array();
    for (const LayerFindings& one : layers) {
      document["layers"].push_back(to_json(one));
    }
    print_json(document);
  } else {
    fmt::print("{}\n\n", options.recording.string());
    print_table(layers);
    fmt::print("\n{}",
               wrapped(clean ? "clean: every entry is a key that its row may attend to, or -1, which is unused, "
                               "no row is empty, and every value is finite"
                             : "not clean: bad entries are ignored on every path, the output of a row that selects "
                               "nothing is zero, and non-finite keys spoil their request",
                       output_width(), 2));
  }
  return clean ? kAllWell : kCheckFailed;
}

}  // namespace headrace::app
