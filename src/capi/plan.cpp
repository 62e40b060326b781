// SPDX-License-Identifier: Apache-2.0
#include "headrace/plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "capi/attention.h"
#include "capi/errors.h"
#include "capi/handles.h"
#include "capi/names.h"
#include "capi/structs.h"
#include "capi/views.h"
#include "headrace/c_api.h"
#include "headrace/cuda.h"
#include "headrace/error.h"

using namespace headrace;        // NOLINT(google-build-using-namespace): the functions are the namespace's C names
using namespace headrace::capi;  // NOLINT(google-build-using-namespace)

namespace {

/// Bytes of an element of hr_plan_requests in the version that brought it.
constexpr std::size_t kFirstRequestPlan = 40;
static_assert(kFirstRequestPlan <= sizeof(HrRequestPlan));

HrRequestPlan to_c(const RequestPlan& request) noexcept {
  return {.query_len = request.query_len,
          .context_len = request.context_len,
          .scoring_begin = request.scoring_begin,
          .predicted_ms = request.predicted_ms,
          .path = number_of(request.path),
          .skip_scoring = request.skip_scoring ? 1 : 0};
}

void write_requests(const Plan& plan, std::int64_t begin, std::int64_t count, HrRequestPlan* to, std::size_t stride) {
  const auto all = static_cast<std::int64_t>(plan.requests().size());
  if (begin < 0 || count < 0 || begin > all || count > all - begin) {
    throw Error("begin and count", "a range of the " + std::to_string(all) + " requests",
                std::to_string(begin) + " and " + std::to_string(count));
  }
  if (stride < kFirstRequestPlan) {
    throw Error("stride", "at least " + std::to_string(kFirstRequestPlan) + " bytes", std::to_string(stride));
  }
  if (count > 0) {
    static_cast<void>(required("requests", to));
  }
  auto* element = reinterpret_cast<std::byte*>(to);
  for (const RequestPlan& request :
       plan.requests().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count))) {
    const HrRequestPlan from = to_c(request);
    const std::size_t known = std::min(stride, sizeof from);
    std::memcpy(element, &from, known);
    std::memset(element + known, 0, stride - known);
    element += stride;
  }
}

}  // namespace

HrError* hr_workspace_bound(const HrAttention* attention, const HrLimits* limits, int64_t* bytes) {
  return guarded([&] {
    required("bytes", bytes) = workspace_bound(attention_of(attention), limits_of(&required("limits", limits)));
  });
}

HrError* hr_table_bound(const HrAttention* attention, const HrLimits* limits, int64_t* bytes) {
  return guarded(
      [&] { required("bytes", bytes) = table_bound(attention_of(attention), limits_of(&required("limits", limits))); });
}

HrError* hr_plan_create(const HrAttention* attention, const HrBatch* batch, const HrLimits* limits,
                        const HrHints* hints, HrPlan** plan) {
  return guarded([&] {
    HrPlan*& result = required("plan", plan);
    auto made = std::make_unique<HrPlan>();
    made->plan = headrace::plan(attention_of(attention), batch_of(batch), limits_of(limits), hints_of(hints));
    result = made.release();
  });
}

HrError* hr_plan_remake(HrPlan* plan, const HrBatch* batch) {
  return guarded([&] { required("plan", plan).plan.remake(batch_of(batch)); });
}

HrError* hr_plan_refresh(HrPlan* plan, const HrBatch* batch) {
  return guarded([&] { required("plan", plan).plan.refresh(batch_of(batch)); });
}

HrError* hr_plan_upload(HrPlan* plan, const HrMemory* tables, void* stream) {
  return guarded([&] {
    Plan& of = required("plan", plan).plan;
    if (of.device().cuda == nullptr) {
      throw Error("plan", "a plan for a GPU", "one for the processor, which has no tables");
    }
    upload(of, memory_of("tables", required("tables", tables)), stream_of(stream));
  });
}

int64_t hr_plan_table_bytes(const HrPlan* plan) { return plan->plan.table_bytes(); }
int64_t hr_plan_workspace_bytes(const HrPlan* plan) { return plan->plan.workspace_bytes(); }

HrError* hr_plan_kept_bytes(const HrPlan* plan, int32_t path, int64_t* bytes) {
  return guarded([&] { required("bytes", bytes) = required("plan", plan).plan.kept_bytes(path_of("path", path)); });
}

int64_t hr_plan_request_count(const HrPlan* plan) { return static_cast<int64_t>(plan->plan.requests().size()); }

HrError* hr_plan_requests(const HrPlan* plan, int64_t begin, int64_t count, HrRequestPlan* requests, size_t stride) {
  return guarded([&] { write_requests(required("plan", plan).plan, begin, count, requests, stride); });
}

HrError* hr_plan_reason(HrPlan* plan, int64_t request, const char** text) {
  return guarded([&] {
    HrPlan& of = required("plan", plan);
    const char*& result = required("text", text);
    of.text = of.plan.reason(request);
    result = of.text.c_str();
  });
}

HrError* hr_plan_explain(HrPlan* plan, const char** text) {
  return guarded([&] {
    HrPlan& of = required("plan", plan);
    const char*& result = required("text", text);
    of.text = of.plan.explain();
    result = of.text.c_str();
  });
}

void hr_plan_free(HrPlan* plan) { delete plan; }
