// SPDX-License-Identifier: Apache-2.0
#include "c_api.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "handles.h"
#include "headrace/attention.h"
#include "headrace/version.h"
#include "tensor.h"

namespace headrace::python {
namespace {

Limits limits_of(const HrLimits& limits) {
  Limits result;
  if (limits.workspace_bytes >= 0) {
    result.workspace_bytes = limits.workspace_bytes;
  }
  if (limits.threads < 0 || limits.threads > kMaxThreads) {
    throw Error("threads", "a number in [0, " + std::to_string(kMaxThreads) + "], 0 for all of the machine's",
                std::to_string(limits.threads));
  }
  result.device.threads = limits.threads;
  if (limits.device != nullptr) {
    result.device.cuda = limits.device->cuda;
  }
  result.max_tokens = limits.max_tokens;
  result.max_seq_len = limits.max_seq_len;
  result.max_requests = limits.max_requests;
  return result;
}

/// Runs `work`; where an Error of it names `inside`, the caller knows that as `argument`.
template <class Work>
auto with_name(std::string_view inside, const char* argument, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.argument() == inside) {
      throw Error(argument, error.expected(), error.actual());
    }
    throw;
  }
}

Path path_of(const char* argument, const char* name) {
  return with_name("path", argument, [&] { return path_from_name(name); });
}

Place place_of(const Plan& plan) {
  const std::shared_ptr<CudaDevice>& cuda = plan.device().cuda;
  return cuda == nullptr ? Place{} : Place{true, cuda->ordinal()};
}

DType element_of(CacheFormat format) noexcept {
  switch (format) {
    case CacheFormat::float32:
      return DType::float32;
    case CacheFormat::bfloat16:
      return DType::bfloat16;
    case CacheFormat::fp8:
    case CacheFormat::fp8_ds_mla:
      break;
  }
  return DType::float8_e4m3;
}

CacheView cache_of(const HrCall& call, const Attention& attention, const Place& place) {
  const ConstAnyView view = required_input("cache", call.cache, place);
  view.expect("cache", {-1, -1, -1});
  if (view.dtype() != DType::uint8) {
    expect_dtype("cache", element_of(attention.format), view.dtype());
  }
  if (view.stride(2) != 1 && view.dim(2) > 1) {
    throw Error("cache", "a contiguous last dimension", "stride " + std::to_string(view.stride(2)));
  }
  const std::int64_t size = size_of(view.dtype());
  return {.data = static_cast<const std::byte*>(view.data()),
          .num_pages = view.dim(0),
          .page_size = view.dim(1),
          .page_stride = view.stride(0) * size,
          .row_stride = view.stride(1) * size,
          .scale = call.cache_scale,
          .row_bytes = view.dim(2) * size};
}

View<const std::int32_t> integers(const char* name, const HrTensor& tensor, const Place& place) {
  return required_input(name, tensor, place).as<std::int32_t>(name);
}

Inputs inputs_of(const HrCall& call, const Attention& attention, const Place& place) {
  return {.q = required_input("q", call.q, place),
          .cache = cache_of(call, attention, place),
          .requests = {.query_start = integers("query_start", call.query_start, place),
                       .seq_len = integers("seq_len", call.seq_len, place),
                       .block_table = integers("block_table", call.block_table, place)},
          .selection = {.index = typed<std::int32_t>("selection.index",
                                                     optional_input("selection.index", call.index, place)),
                        .count = typed<std::int32_t>("selection.count",
                                                     optional_input("selection.count", call.count, place)),
                        .space = attention.space},
          .selection_kept = call.selection_kept != 0};
}

std::span<std::byte> bytes_of(const char* name, const HrTensor& tensor, const Place& place) {
  const auto view = required_output(name, tensor, place).as<std::uint8_t>(name);
  view.expect(name, {-1});
  if (view.dim(0) > 1 && view.stride(0) != 1) {
    throw Error(name, "contiguous bytes", "stride " + std::to_string(view.stride(0)));
  }
  return std::as_writable_bytes(std::span(view.data(), static_cast<std::size_t>(view.dim(0))));
}

/// A handle of another library, which crossed as a number.
Stream stream_of(std::int64_t handle) {
  return {reinterpret_cast<void*>(handle)};  // NOLINT(performance-no-int-to-ptr)
}

void upload_to(Plan& plan, const HrTensor& tables, std::int64_t stream) {
  if (plan.device().cuda == nullptr) {
    throw Error("plan", "a plan for a GPU", "one for the processor, which has no tables");
  }
  upload(plan, bytes_of("tables", tables, place_of(plan)), stream_of(stream));
}

struct NamedView {
  const char* name = nullptr;
  ConstAnyView view;
};

/// What is written must not be what is read, nor be written twice. Rows of two tensors may alternate in one memory, so
/// only those that begin at the same address are surely in each other's way.
void expect_apart(std::span<const NamedView> outputs, std::span<const NamedView> others) {
  const auto same = [](const ConstAnyView& a, const ConstAnyView& b) {
    const auto has_elements = [](const ConstAnyView& view) {
      const auto* const end = view.shape().begin() + view.rank();
      return view.rank() > 0 && std::find(view.shape().begin(), end, 0) == end;
    };
    return has_elements(a) && has_elements(b) && a.data() == b.data();
  };
  for (const NamedView& output : outputs) {
    for (const NamedView& other : others) {
      if (output.name != other.name && same(output.view, other.view)) {
        throw Error(output.name, std::string("other memory than that of ") + other.name, "the same");
      }
    }
  }
}

void attend_on(const Plan& plan, const HrCall& call) {
  const Place place = place_of(plan);
  const Weights weights{.kv_b_proj = required_input("kv_b_proj", call.kv_b_proj, place),
                        .sink = typed<float>("sink", optional_input("sink", call.sink, place))};
  const Inputs inputs = inputs_of(call, plan.attention(), place);
  const Outputs outputs{.out = required_output("out", call.out, place),
                        .lse = typed<float>("lse", optional_output("lse", call.lse, place))};
  const std::span<std::byte> workspace = bytes_of("workspace", call.workspace, place);
  const NamedView written[] = {{"out", outputs.out}, {"lse", outputs.lse}};
  const NamedView read[] = {{"q", inputs.q},
                            {"kv_b_proj", weights.kv_b_proj},
                            {"sink", weights.sink},
                            {"cache", required_input("cache", call.cache, place)},
                            {"block_table", inputs.requests.block_table},
                            {"query_start", inputs.requests.query_start},
                            {"seq_len", inputs.requests.seq_len},
                            {"index", inputs.selection.index},
                            {"count", inputs.selection.count},
                            {"workspace", required_input("workspace", call.workspace, place)}};
  expect_apart(written, read);
  expect_apart(written, written);
  if (place.cuda) {
    attend(plan, weights, inputs, outputs, workspace, stream_of(call.stream));
  } else {
    attend(plan, weights, inputs, outputs, workspace);
  }
}

}  // namespace
}  // namespace headrace::python

using headrace::python::guarded;

int32_t hr_abi() { return HR_ABI; }
const char* hr_version() { return headrace::version().data(); }

const char* hr_error_argument(const HrError* error) { return error->error.argument().c_str(); }
const char* hr_error_expected(const HrError* error) { return error->error.expected().c_str(); }
const char* hr_error_actual(const HrError* error) { return error->error.actual().c_str(); }
void hr_error_free(HrError* error) { delete error; }

int32_t hr_device_count() { return headrace::CudaDevice::count(); }
HrError* hr_device_create(int32_t ordinal, HrDevice** device) {
  return guarded([&] { *device = new HrDevice{std::make_shared<headrace::CudaDevice>(ordinal)}; });
}
const char* hr_device_name(const HrDevice* device) { return device->cuda->name().c_str(); }
const char* hr_device_unmet(const HrDevice* device) { return device->cuda->unmet().c_str(); }
HrError* hr_device_warm_up(HrDevice* device, const HrAttention* attention) {
  return guarded([&] { device->cuda->warm_up(headrace::python::attention_of(*attention)); });
}
void hr_device_free(HrDevice* device) { delete device; }

HrError* hr_workspace_bound(const HrAttention* attention, const HrLimits* limits, int64_t* bytes) {
  return guarded([&] {
    *bytes = headrace::python::with_name("limits.workspace_bytes", "workspace_limit", [&] {
      return headrace::workspace_bound(headrace::python::attention_of(*attention),
                                       headrace::python::limits_of(*limits));
    });
  });
}

HrError* hr_table_bound(const HrAttention* attention, const HrLimits* limits, int64_t* bytes) {
  return guarded([&] {
    *bytes = headrace::table_bound(headrace::python::attention_of(*attention), headrace::python::limits_of(*limits));
  });
}

HrError* hr_plan_create(const HrAttention* attention, const HrBatch* batch, const HrLimits* limits, const char* force,
                        HrPlan** plan) {
  return guarded([&] {
    headrace::Hints hints;
    if (force != nullptr) {
      hints.force = headrace::python::path_of("force", force);
    }
    auto made = std::make_unique<HrPlan>();
    made->plan = headrace::python::with_name("limits.workspace_bytes", "workspace_limit", [&] {
      return headrace::plan(headrace::python::attention_of(*attention), headrace::python::batch_of(*batch),
                            headrace::python::limits_of(*limits), hints);
    });
    *plan = made.release();
  });
}
HrError* hr_plan_remake(HrPlan* plan, const HrBatch* batch) {
  return guarded([&] { plan->plan.remake(headrace::python::batch_of(*batch)); });
}
HrError* hr_plan_refresh(HrPlan* plan, const HrBatch* batch) {
  return guarded([&] { plan->plan.refresh(headrace::python::batch_of(*batch)); });
}
HrError* hr_plan_upload(HrPlan* plan, const HrTensor* tables, int64_t stream) {
  return guarded([&] { headrace::python::upload_to(plan->plan, *tables, stream); });
}
int64_t hr_plan_table_bytes(const HrPlan* plan) { return plan->plan.table_bytes(); }
int64_t hr_plan_workspace_bytes(const HrPlan* plan) { return plan->plan.workspace_bytes(); }
HrError* hr_plan_kept_bytes(const HrPlan* plan, const char* path, int64_t* bytes) {
  return guarded([&] { *bytes = plan->plan.kept_bytes(headrace::python::path_of("path", path)); });
}
int64_t hr_plan_requests(const HrPlan* plan) { return static_cast<int64_t>(plan->plan.requests().size()); }
HrError* hr_plan_request(const HrPlan* plan, int64_t request, HrRequestPlan* result) {
  return guarded([&] {
    const auto requests = plan->plan.requests();
    if (request < 0 || request >= static_cast<int64_t>(requests.size())) {
      throw headrace::Error("request", "one in [0, " + std::to_string(requests.size()) + ")", std::to_string(request));
    }
    const headrace::RequestPlan& of = requests[static_cast<std::size_t>(request)];
    *result = {.query_len = of.query_len,
               .context_len = of.context_len,
               .path = headrace::name_of(of.path).data(),
               .predicted_ms = of.predicted_ms,
               .skip_scoring = of.skip_scoring ? 1 : 0,
               .scoring_begin = of.scoring_begin};
  });
}
HrError* hr_plan_reason(HrPlan* plan, int64_t request, const char** text) {
  return guarded([&] {
    plan->text = plan->plan.reason(request);
    *text = plan->text.c_str();
  });
}
HrError* hr_plan_explain(HrPlan* plan, const char** text) {
  return guarded([&] {
    plan->text = plan->plan.explain();
    *text = plan->text.c_str();
  });
}
void hr_plan_free(HrPlan* plan) { delete plan; }

HrError* hr_attend(const HrPlan* plan, const HrCall* call) {
  return guarded([&] { headrace::python::attend_on(plan->plan, *call); });
}
