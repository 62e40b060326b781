// SPDX-License-Identifier: Apache-2.0
#include "headrace/cache.h"

#include <cstdint>

#include "capi/attention.h"
#include "capi/errors.h"
#include "capi/handles.h"
#include "capi/structs.h"
#include "capi/views.h"
#include "headrace/c_api.h"
#include "headrace/cuda.h"

namespace headrace::capi {
namespace {

void append_to(const Attention& attention, const HrAppendCall& call) {
  const MutableCacheView cache = cache_of(call.cache, attention.format);
  const ConstAnyView latent = required_view("latent", call.latent);
  const ConstAnyView rope_key = optional_view("rope_key", call.rope_key);
  const auto slots = required_view<std::int64_t>("slot_mapping", call.slot_mapping);
  const int threads = threads_of("call.threads", call.threads);
  if (call.device != nullptr) {
    append(attention.geometry, attention.format, cache, latent, rope_key, slots, *call.device->cuda,
           stream_of(call.stream));
  } else {
    append(attention.geometry, attention.format, cache, latent, rope_key, slots, threads);
  }
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // NOLINT(google-build-using-namespace): the functions are the namespace's C names

HrError* hr_cache_row_bytes(const HrAttention* attention, int64_t* bytes) {
  return guarded([&] {
    const headrace::Attention of = attention_of(attention);
    required("bytes", bytes) = headrace::cache_row_bytes(of.format, of.geometry);
  });
}

HrError* hr_append(const HrAttention* attention, const HrAppendCall* call) {
  return guarded([&] { append_to(attention_of(attention), read_struct("call", call)); });
}
