// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <string>

#include "headrace/plan.h"

namespace headrace {

std::string Plan::explain() const {
  fmt::memory_buffer text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{}, {} compute, cache {}, {} threads, workspace {} bytes\n", attention_.rule.to_string(),
                 name_of(attention_.compute), name_of(attention_.format), threads_, workspace_bytes_);
  for (const Path path : kPaths) {
    if (kept_bytes(path) > 0) {
      fmt::format_to(out, "layers that share a selection may share what {} makes of it, {} bytes of the workspace\n",
                     name_of(path), kept_bytes(path));
    }
  }
  for (const RequestPlan& request : requests_) {
    fmt::format_to(out, "request {}: {} + {} -> {} ({:.3g} ms){}\n  {}\n", request.request, request.query_len,
                   request.context_len, name_of(request.path), request.predicted_ms,
                   request.skip_scoring ? ", scoring not needed" : "", request.reason);
    for (const Alternative& other : request.alternatives) {
      fmt::format_to(out, "  not {}: {}\n", name_of(other.path),
                     other.unmet.empty() ? fmt::format("{:.3g} ms", other.predicted_ms)
                                         : fmt::format("{}", fmt::join(other.unmet, "; ")));
    }
  }
  return fmt::to_string(text);
}

}  // namespace headrace
