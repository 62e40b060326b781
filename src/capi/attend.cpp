// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "capi/errors.h"
#include "capi/handles.h"
#include "capi/structs.h"
#include "capi/views.h"
#include "headrace/attention.h"
#include "headrace/c_api.h"
#include "headrace/cuda.h"
#include "headrace/error.h"

namespace headrace::capi {
namespace {

/// A view with its name; of the cache and of the workspace only where they begin.
struct NamedMemory {
  const char* name = nullptr;
  const void* data = nullptr;  ///< null where there is nothing
};

NamedMemory named(const char* name, const ConstAnyView& view) noexcept {
  const auto* const end = view.shape().begin() + view.rank();
  const bool has_elements = !view.empty() && std::find(view.shape().begin(), end, 0) == end;
  return {name, has_elements ? view.data() : nullptr};
}

/// What is written must not be what is read, nor be written twice. Rows of two views may alternate in one memory, so
/// only those that begin at the same address are surely in each other's way.
void expect_apart(std::span<const NamedMemory> outputs, std::span<const NamedMemory> others) {
  for (const NamedMemory& output : outputs) {
    for (const NamedMemory& other : others) {
      if (output.name != other.name && output.data != nullptr && output.data == other.data) {
        throw Error(output.name, std::string("other memory than that of ") + other.name, "the same");
      }
    }
  }
}

void attend_on(const Plan& plan, const HrAttendCall& call) {
  expect_reserved("call.reserved", call.reserved);
  const Weights weights{.kv_b_proj = required_view("kv_b_proj", call.kv_b_proj),
                        .sink = optional_view<float>("sink", call.sink)};
  const Inputs inputs{.q = required_view("q", call.q),
                      .cache = cache_of(call.cache, plan.attention().format),
                      .requests = requests_of(call.requests),
                      .selection = {.index = optional_view<std::int32_t>("selection.index", call.index),
                                    .count = optional_view<std::int32_t>("selection.count", call.count),
                                    .space = plan.attention().space},
                      .selection_kept = flag("selection_kept", call.selection_kept)};
  const Outputs outputs{.out = required_view("out", call.out), .lse = optional_view<float>("lse", call.lse)};
  const std::span<std::byte> workspace = memory_of("workspace", call.workspace);
  const NamedMemory written[] = {named("out", outputs.out), named("lse", outputs.lse)};
  const NamedMemory read[] = {named("q", inputs.q),
                              named("kv_b_proj", weights.kv_b_proj),
                              named("sink", weights.sink),
                              {"cache", inputs.cache.num_pages > 0 ? inputs.cache.data : nullptr},
                              named("block_table", inputs.requests.block_table),
                              named("query_start", inputs.requests.query_start),
                              named("seq_len", inputs.requests.seq_len),
                              named("index", inputs.selection.index),
                              named("count", inputs.selection.count),
                              {"workspace", workspace.empty() ? nullptr : workspace.data()}};
  expect_apart(written, read);
  expect_apart(written, written);
  if (plan.device().cuda != nullptr) {
    attend(plan, weights, inputs, outputs, workspace, stream_of(call.stream));
  } else {
    attend(plan, weights, inputs, outputs, workspace);
  }
}

}  // namespace
}  // namespace headrace::capi

HrError* hr_attend(const HrPlan* plan, const HrAttendCall* call) {
  using namespace headrace::capi;  // NOLINT(google-build-using-namespace)
  return guarded([&] { attend_on(required("plan", plan).plan, read_struct("call", call)); });
}
