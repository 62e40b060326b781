// SPDX-License-Identifier: Apache-2.0
//
// The calls of the C interface that take memory, with tensors in its place.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>

#include "capi/errors.h"
#include "capi/handles.h"
#include "capi/names.h"
#include "dl_api.h"
#include "dlpack.h"
#include "headrace/cuda.h"
#include "tensor.h"

// Of Python itself, which whoever holds its lock runs in; its headers would bind the library to one version of it.
extern "C" {
__attribute__((weak)) void* PyErr_Occurred(void);                     // NOLINT(readability-identifier-naming)
__attribute__((weak)) void* PyEval_SaveThread(void);                  // NOLINT(readability-identifier-naming)
__attribute__((weak)) void PyEval_RestoreThread(void* thread_state);  // NOLINT(readability-identifier-naming)
}

namespace headrace::python {
namespace {

/// Lets Python's other threads run as long as it lives.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread != nullptr ? PyEval_SaveThread() : nullptr) {}
  ~Unlocked() {
    if (state_ != nullptr) {
      PyEval_RestoreThread(state_);
    }
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  void* state_;
};

/// The tensors of a call, in the order in which it has them.
constexpr const char* kTensors[] = {"q",       "kv_b_proj", "sink",  "cache", "block_table", "query_start",
                                    "seq_len", "index",     "count", "out",   "lse",         "workspace"};
constexpr int kTensorCount = std::size(kTensors);
static_assert(offsetof(HrDlCall, cache_scale) == kTensorCount * sizeof(HrTensor));

/// The error of an owner that refused something; null where it set Python's.
HrError* refusal(const char* argument, const char* expected) {
  if (PyErr_Occurred != nullptr && PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  return capi::guarded([&] { throw Error(argument, expected, "a refusal of its library"); });
}

Place place_of(const Plan& plan) {
  const std::shared_ptr<CudaDevice>& cuda = plan.device().cuda;
  return cuda == nullptr ? Place{} : Place{true, cuda->ordinal()};
}

/// An address as C's structures have it, for inputs as for outputs.
void* unconst(const void* address) noexcept {
  return const_cast<void*>(address);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

HrView to_c(const ConstAnyView& view) noexcept {
  if (view.empty()) {
    return {};
  }
  HrView result{.data = unconst(view.data()),
                .dtype = capi::number_of(view.dtype()),
                .rank = view.rank(),
                .shape = {},
                .stride = {}};
  std::copy(view.shape().begin(), view.shape().end(), result.shape);
  std::copy(view.strides().begin(), view.strides().end(), result.stride);
  return result;
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

HrCache cache_of(const HrDlCall& call, const Attention& attention, const Place& place) {
  const ConstAnyView view = required_input("cache", call.cache, place);
  view.expect("cache", {-1, -1, -1});
  if (view.dtype() != DType::uint8) {
    expect_dtype("cache", element_of(attention.format), view.dtype());
  }
  if (view.stride(2) != 1 && view.dim(2) > 1) {
    throw Error("cache", "a contiguous last dimension", "stride " + std::to_string(view.stride(2)));
  }
  // Of formats without one too: nobody who passes such a scale means it.
  if (!(std::isfinite(call.cache_scale) && call.cache_scale > 0.0F)) {
    throw Error("cache.scale", "finite and > 0", std::to_string(call.cache_scale));
  }
  const std::int64_t size = size_of(view.dtype());
  return {.data = unconst(view.data()),
          .num_pages = view.dim(0),
          .page_size = view.dim(1),
          .page_stride = view.stride(0) * size,
          .row_stride = view.stride(1) * size,
          .row_bytes = view.dim(2) * size,
          .scale = call.cache_scale};
}

HrMemory bytes_of(const char* name, const HrTensor& tensor, const Place& place) {
  const auto view = required_output(name, tensor, place).as<std::uint8_t>(name);
  view.expect(name, {-1});
  if (view.dim(0) > 1 && view.stride(0) != 1) {
    throw Error(name, "contiguous bytes", "stride " + std::to_string(view.stride(0)));
  }
  return {.data = view.data(), .bytes = view.dim(0)};
}

/// A handle of another library, which crossed as a number.
void* stream_of(std::int64_t handle) {
  return reinterpret_cast<void*>(handle);  // NOLINT(performance-no-int-to-ptr)
}

HrAttendCall to_c(const HrDlCall& call, const Plan& plan) {
  const Place place = place_of(plan);
  return {.size = sizeof(HrAttendCall),
          .q = to_c(required_input("q", call.q, place)),
          .kv_b_proj = to_c(required_input("kv_b_proj", call.kv_b_proj, place)),
          .sink = to_c(optional_input("sink", call.sink, place)),
          .cache = cache_of(call, plan.attention(), place),
          .requests = {.query_start = to_c(required_input("query_start", call.query_start, place)),
                       .seq_len = to_c(required_input("seq_len", call.seq_len, place)),
                       .block_table = to_c(required_input("block_table", call.block_table, place))},
          .index = to_c(optional_input("selection.index", call.index, place)),
          .count = to_c(optional_input("selection.count", call.count, place)),
          .out = to_c(required_output("out", call.out, place)),
          .lse = to_c(optional_output("lse", call.lse, place)),
          .workspace = bytes_of("workspace", call.workspace, place),
          .stream = stream_of(call.stream),
          .selection_kept = call.selection_kept,
          .reserved = 0};
}

}  // namespace
}  // namespace headrace::python

int32_t hr_dl_abi() { return HR_DL_ABI; }

HrError* hr_dl_upload(HrPlan* plan, const HrTensor* tables, int64_t stream) {
  namespace py = headrace::python;
  HrMemory memory{};
  HrError* const error =
      headrace::capi::guarded([&] { memory = py::bytes_of("tables", *tables, py::place_of(plan->plan)); });
  return error != nullptr ? error : hr_plan_upload(plan, &memory, py::stream_of(stream));
}

HrError* hr_dl_attend(const HrPlan* plan, const HrDlCall* call) {
  HrAttendCall in_c{};
  HrError* const error = headrace::capi::guarded([&] { in_c = headrace::python::to_c(*call, plan->plan); });
  return error != nullptr ? error : hr_attend(plan, &in_c);
}

HrError* hr_dl_attend_objects(const HrPlan* plan, const void* exchange, void* const* objects, float cache_scale,
                              int32_t own_stream, int64_t stream, int32_t selection_kept) {
  namespace py = headrace::python;
  HrDlTensor lent[py::kTensorCount];
  HrDlCall call{};
  call.cache_scale = cache_scale;
  call.stream = stream;
  call.selection_kept = selection_kept;
  const int32_t refused = hr_dl_lend(exchange, objects, py::kTensorCount, lent, &call.q);
  if (refused >= 0) {
    return py::refusal(py::kTensors[refused], "a tensor that DLPack can lend");
  }
  const py::Place place = py::place_of(plan->plan);
  if (own_stream != 0 && place.cuda && hr_dl_work_stream(exchange, place.ordinal, &call.stream) != 0) {
    return py::refusal("stream", "the stream in which the tensors' library works");
  }
  HrAttendCall in_c{};  // made under the lock: until then sizes are read from what the owners lent
  HrError* const error = headrace::capi::guarded([&] { in_c = py::to_c(call, plan->plan); });
  if (error != nullptr) {
    return error;
  }
  const py::Unlocked unlocked;
  return hr_attend(plan, &in_c);
}
