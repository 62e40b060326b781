// SPDX-License-Identifier: Apache-2.0
#include "headrace/cache.h"

#include <cstdint>

#include "capi/attention.h"
#include "capi/errors.h"
#include "capi/structs.h"
#include "capi/views.h"
#include "headrace/c_api.h"

namespace headrace::capi {
namespace {

void append_to(const Attention& attention, const HrAppendCall& call) {
  append(attention.geometry, attention.format, cache_of(call.cache, attention.format),
         required_view("latent", call.latent), optional_view("rope_key", call.rope_key),
         required_view<std::int64_t>("slot_mapping", call.slot_mapping), threads_of("call.threads", call.threads));
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
