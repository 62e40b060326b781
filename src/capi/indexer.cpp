// SPDX-License-Identifier: Apache-2.0
#include "headrace/indexer.h"

#include <cstdint>

#include "capi/attention.h"
#include "capi/errors.h"
#include "capi/names.h"
#include "capi/structs.h"
#include "capi/views.h"
#include "headrace/c_api.h"
#include "headrace/error.h"

namespace headrace::capi {
namespace {

struct Indexer {
  IndexerGeometry geometry;
  DType compute = DType::float32;
};

Indexer indexer_of(const HrIndexer* indexer) {
  const HrIndexer from = read_struct("indexer", indexer);
  IndexerGeometry geometry{.num_heads = from.num_heads, .head_dim = from.head_dim, .topk = from.topk};
  if (from.pool != 0) {
    geometry.kpool = true;
    geometry.pool = from.pool;
    geometry.tail = flag("indexer.tail", from.tail);
  }
  geometry.validate();
  const DType compute = dtype_of("indexer.compute", from.compute);
  if (compute != DType::float32 && compute != DType::bfloat16) {
    throw Error("indexer.compute", "HR_FLOAT32 or HR_BFLOAT16", std::string(name_of(compute)));
  }
  return {geometry, compute};
}

template <class Call>
IndexQueries queries_of(const Call& call) {
  return {.query = required_view("query", call.query),
          .head_weight = required_view<float>("head_weight", call.head_weight)};
}

void append_keys(const Indexer& indexer, const HrAppendIndexKeysCall& call) {
  append_index_keys(indexer.geometry, indexer.compute, index_cache_of(call.cache), required_view("key", call.key),
                    optional_view("gate", call.gate), optional_view<float>("offset_bias", call.offset_bias),
                    requests_of(call.requests), required_view<std::int64_t>("slot_mapping", call.slot_mapping),
                    threads_of("call.threads", call.threads));
}

void select_on(const Indexer& indexer, const HrSelectCall& call) {
  select(indexer.geometry, indexer.compute, index_cache_of(call.cache), queries_of(call), requests_of(call.requests),
         optional_view<std::int64_t>("scoring_begin", call.scoring_begin),
         required_view<std::int32_t>("index", call.index), required_view<std::int32_t>("count", call.count),
         call.workspace_bytes, threads_of("call.threads", call.threads));
}

std::int64_t score_on(const Indexer& indexer, const HrScoreRowCall& call) {
  return score_row(indexer.geometry, indexer.compute, index_cache_of(call.cache), queries_of(call),
                   requests_of(call.requests), call.request, call.token, required_view<float>("scores", call.scores));
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // NOLINT(google-build-using-namespace): the functions are the namespace's C names

HrError* hr_index_row_bytes(const HrIndexer* indexer, int64_t* bytes) {
  return guarded([&] {
    const auto of = indexer_of(indexer);
    required("bytes", bytes) = of.geometry.cache_row_bytes(of.compute);
  });
}

HrError* hr_select_width(const HrIndexer* indexer, int64_t* columns) {
  return guarded([&] { required("columns", columns) = indexer_of(indexer).geometry.rule().width(); });
}

HrError* hr_append_index_keys(const HrIndexer* indexer, const HrAppendIndexKeysCall* call) {
  return guarded([&] { append_keys(indexer_of(indexer), read_struct("call", call)); });
}

HrError* hr_select(const HrIndexer* indexer, const HrSelectCall* call) {
  return guarded([&] { select_on(indexer_of(indexer), read_struct("call", call)); });
}

HrError* hr_select_workspace_minimum(const HrIndexer* indexer, int64_t longest_seq_len, int64_t* bytes) {
  return guarded([&] {
    required("bytes", bytes) = headrace::select_workspace_minimum(indexer_of(indexer).geometry, longest_seq_len);
  });
}

HrError* hr_score_row(const HrIndexer* indexer, const HrScoreRowCall* call, int64_t* count) {
  return guarded([&] { required("count", count) = score_on(indexer_of(indexer), read_struct("call", call)); });
}
