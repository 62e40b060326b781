// SPDX-License-Identifier: Apache-2.0
#include "headrace/indexer.h"

#include <cstdint>
#include <string>

#include "capi/attention.h"
#include "capi/errors.h"
#include "capi/handles.h"
#include "capi/names.h"
#include "capi/structs.h"
#include "capi/views.h"
#include "headrace/c_api.h"
#include "headrace/cuda_indexer.h"
#include "headrace/error.h"
#include "selection/score_rows.h"

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
  } else {
    expect_unused("indexer.tail", from.tail, "a lightning indexer");
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

/// A GPU computes in one type only.
void expect_bfloat16(const Indexer& indexer) {
  if (indexer.compute != DType::bfloat16) {
    throw UnsupportedError("indexer.compute", "HR_BFLOAT16, in which a GPU computes",
                           std::string(name_of(indexer.compute)));
  }
}

template <class Call>
TokenRange rows_of(const Call& call) {
  return flag("call.some_rows", call.some_rows) ? TokenRange{call.rows_begin, call.rows_end} : TokenRange{};
}

void append_keys(const Indexer& indexer, const HrAppendIndexKeysCall& call) {
  const MutableCacheView cache = index_cache_of(call.cache);
  const ConstAnyView key = required_view("key", call.key);
  const ConstAnyView gate = optional_view("gate", call.gate);
  const auto bias = optional_view<float>("offset_bias", call.offset_bias);
  const Requests requests = requests_of(call.requests);
  const auto slots = required_view<std::int64_t>("slot_mapping", call.slot_mapping);
  const int threads = threads_of("call.threads", call.threads);
  if (call.device != nullptr) {
    expect_bfloat16(indexer);
    append_index_keys(indexer.geometry, cache, key, gate, bias, requests, slots, *call.device->cuda,
                      stream_of(call.stream));
  } else {
    append_index_keys(indexer.geometry, indexer.compute, cache, key, gate, bias, requests, slots, threads);
  }
}

void select_on(const Indexer& indexer, const HrSelectCall& call) {
  const CacheView cache = index_cache_of(call.cache);
  const IndexQueries queries = queries_of(call);
  const Requests requests = requests_of(call.requests);
  const auto scoring_begin = optional_view<std::int64_t>("scoring_begin", call.scoring_begin);
  const auto index = required_view<std::int32_t>("index", call.index);
  const auto count = required_view<std::int32_t>("count", call.count);
  const TokenRange rows = rows_of(call);
  const int threads = threads_of("call.threads", call.threads);
  if (call.device != nullptr) {
    expect_bfloat16(indexer);
    select(indexer.geometry, cache, queries, requests, scoring_begin, call.longest_seq_len, index, count,
           memory_of("workspace", call.workspace), *call.device->cuda, stream_of(call.stream), rows);
  } else {
    select(indexer.geometry, indexer.compute, cache, queries, requests, scoring_begin, index, count,
           call.workspace.bytes, threads, rows);
  }
}

std::int64_t score_on(const Indexer& indexer, const HrScoreRowCall& call) {
  return score_row(indexer.geometry, indexer.compute, index_cache_of(call.cache), queries_of(call),
                   requests_of(call.requests), call.request, call.token, required_view<float>("scores", call.scores));
}

void score_rows_on(const Indexer& indexer, const HrScoreRowsCall& call) {
  const CacheView cache = index_cache_of(call.cache);
  const IndexQueries queries = queries_of(call);
  const Requests requests = requests_of(call.requests);
  const auto scores = required_view<float>("scores", call.scores);
  const TokenRange rows = rows_of(call);
  if (call.device != nullptr) {
    expect_bfloat16(indexer);
    score_rows(indexer.geometry, cache, queries, requests, call.longest_seq_len, scores, *call.device->cuda,
               stream_of(call.stream), rows);
    return;
  }
  selection::score_rows(indexer.geometry, indexer.compute, cache, queries, requests, scores, rows);
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

HrError* hr_score_rows(const HrIndexer* indexer, const HrScoreRowsCall* call) {
  return guarded([&] { score_rows_on(indexer_of(indexer), read_struct("call", call)); });
}

HrError* hr_cuda_select_workspace(const HrIndexer* indexer, int64_t tokens, int64_t longest_seq_len, int64_t* least,
                                  int64_t* useful) {
  return guarded([&] {
    const headrace::SelectWorkspace bytes =
        headrace::cuda_select_workspace(indexer_of(indexer).geometry, tokens, longest_seq_len);
    std::int64_t& result = required("useful", useful);
    required("least", least) = bytes.least;
    result = bytes.useful;
  });
}
