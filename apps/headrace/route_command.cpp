// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>

#include "commands.h"
#include "model_source.h"
#include "numbers.h"
#include "output.h"
#include "plan_text.h"
#include "step_selection.h"
#include "table.h"

namespace headrace::app {

ExitStatus run_route(const Options& options) {
  const ModelSource model = find_model(options.model, options.tp, options.reading);
  const std::int64_t layer = chosen_layer(model.config, options.layer);
  require_step_selection(model.config, options);
  const Attention attention = attention_of(model.config, layer, options);
  const BatchLengths lengths(options.batch);
  const Target target = chosen_target(options, [&](const Target& nominal) {
    static_cast<void>(plan_step(attention, lengths.view(), options, nominal));
  });
  const Profile& profile = target.profile;
  const Plan plan = plan_step(attention, lengths.view(), options, target);
  tell_notes(model.config);
  note_long_requests(model.config, options.batch);
  if (options.json) {
    Json document = new_document();
    document["device"] = name_of(target.device);
    document["threads"] = plan.threads();
    document["model"] = model.name;
    add_reading(document, model.config);
    document["layer"] = layer;
    document["tp"] = options.tp;
    document["dtype"] = name_of(attention.compute);
    document["kv_cache_dtype"] = name_of(attention.format);
    document["selection_rule"] = attention.rule.to_string();
    document["geometry"] = to_json(attention.geometry);
    document["profile"] = profile.name;
    document["workspace_bytes"] = plan.workspace_bytes();
    document["predicted_ms"] = number(predicted_ms(plan));
    document["requests"] = requests_json(plan);
    print_json(document);
    return kAllWell;
  }
  const std::size_t width = output_width();
  fmt::print("{}\n{}\n", describe(model, layer, attention, target.device, width), plan_table(plan, width));
  fmt::print("{}, {}, {} workspace, {} predicted\n",
             counted(static_cast<std::int64_t>(options.batch.size()), "request"),
             counted(query_tokens(options.batch), "new token"), format_bytes(plan.workspace_bytes()),
             format_ms(predicted_ms(plan)));
  fmt::print("{}", wrapped("rates: " + profile.name, width, 2));
  return kAllWell;
}

}  // namespace headrace::app
