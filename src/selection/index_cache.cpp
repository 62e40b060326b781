// SPDX-License-Identifier: Apache-2.0
#include "selection/index_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cache/requests.h"
#include "device/parallel.h"
#include "headrace/error.h"
#include "selection/kpool.h"

namespace headrace::selection {
namespace {

constexpr std::int64_t kRowsAtOnce = 64;

/// A pool whose last token is written in this step.
struct CompletedPool {
  std::int64_t request = 0;
  std::int64_t last_position = 0;
  std::int64_t last_slot = 0;
};

/// Pools that the step completes; throws Error where the pages of their other tokens are not valid.
std::vector<CompletedPool> completed_pools(const IndexerGeometry& indexer, const CacheView& cache,
                                           const Requests& requests, const std::vector<cache::Request>& spans,
                                           View<const std::int64_t> slots) {
  std::vector<CompletedPool> pools;
  const Candidates candidates = Candidates::of(indexer);
  for (std::size_t b = 0; b < spans.size(); ++b) {
    const cache::Request& span = spans[b];
    const std::int64_t end = candidates.among(span.seq_len);
    for (std::int64_t c = candidates.among(span.context_len()); c < end; ++c) {
      const std::int64_t last = candidates.key_position(c);
      const std::int64_t slot = slots(span.first_token + last - span.context_len());
      if (slot >= 0) {
        const auto request = static_cast<std::int64_t>(b);
        cache::validate_pages(requests, request, last + 1 - candidates.pool, last, cache);
        pools.push_back({request, last, slot});
      }
    }
  }
  return pools;
}

/// Calls body(begin, end, thread) for runs of [0, n).
template <class Body>
void in_runs(std::int64_t n, int threads, const Body& body) {
  device::parallel_for((n + kRowsAtOnce - 1) / kRowsAtOnce, threads, [&](std::int64_t run, int thread) {
    body(run * kRowsAtOnce, std::min(n, (run + 1) * kRowsAtOnce), thread);
  });
}

template <class T>
void copy_row(const View<const T>& source, std::int64_t token, T* out) {
  for (std::int64_t d = 0; d < source.dim(1); ++d) {
    out[d] = source(token, d);
  }
}

template <class T>
void write_rows(const MutableCacheView& cache, View<const T> key, View<const T> gate, View<const std::int64_t> slots,
                int threads) {
  in_runs(key.dim(0), threads, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      if (slots(t) < 0) {
        continue;
      }
      T* row = reinterpret_cast<T*>(cache.row(slots(t)));
      copy_row(key, t, row);
      if (!gate.empty()) {
        copy_row(gate, t, row + key.dim(1));
      }
    }
  });
}

// Runs after all rows are written. A pool reads its own rows only and writes the last of them, which no other pool
// reads: pools are independent.
template <class T>
void write_pooled_keys(const IndexerGeometry& indexer, const MutableCacheView& cache, View<const float> offset_bias,
                       const Requests& requests, const std::vector<CompletedPool>& pools, int threads) {
  const auto pool = static_cast<std::size_t>(indexer.pool);
  const int team = device::thread_count(threads);
  std::vector<std::vector<const T*>> rows_of(static_cast<std::size_t>(team), std::vector<const T*>(pool));
  in_runs(static_cast<std::int64_t>(pools.size()), threads, [&](std::int64_t begin, std::int64_t end, int thread) {
    std::vector<const T*>& rows = rows_of[static_cast<std::size_t>(thread)];
    for (std::int64_t i = begin; i < end; ++i) {
      const CompletedPool& done = pools[static_cast<std::size_t>(i)];
      const std::int64_t first = done.last_position + 1 - indexer.pool;
      for (std::size_t o = 0; o + 1 < pool; ++o) {
        const std::int64_t position = first + static_cast<std::int64_t>(o);
        rows[o] = reinterpret_cast<const T*>(cache::key_row(cache, requests, done.request, position));
      }
      T* last = reinterpret_cast<T*>(cache.row(done.last_slot));
      rows[pool - 1] = last;
      pool_keys<T>(rows, offset_bias, indexer.head_dim, last);
    }
  });
}

void validate_slots(const CacheView& cache, View<const std::int64_t> slots, std::int64_t tokens) {
  slots.expect("slot_mapping", {tokens});
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (slots(t) < -1 || slots(t) >= cache.num_slots()) {
      throw Error(fmt::format("slot_mapping[{}]", t), fmt::format("a slot in [-1, {})", cache.num_slots()),
                  std::to_string(slots(t)));
    }
  }
}

template <class T>
void append_typed(const IndexerGeometry& indexer, const MutableCacheView& cache, const ConstAnyView& key,
                  const ConstAnyView& gate, View<const float> offset_bias, const Requests& requests,
                  View<const std::int64_t> slots, int threads) {
  const auto typed_key = key.as<T>("index key");
  typed_key.expect("index key", {-1, indexer.head_dim});
  View<const T> typed_gate;
  if (indexer.kpool) {
    typed_gate = gate.as<T>("index gate");
    typed_gate.expect("index gate", {key.dim(0), indexer.head_dim});
    offset_bias.expect("offset_bias", {indexer.pool, indexer.head_dim});
  } else if (!gate.empty() || !offset_bias.empty()) {
    throw Error("index gate and offset_bias", "none for a lightning indexer", "a view");
  }
  validate_slots(cache, slots, key.dim(0));
  const std::vector<cache::Request> spans = cache::validate_requests(requests, key.dim(0));
  if (!indexer.kpool) {
    write_rows<T>(cache, typed_key, typed_gate, slots, threads);
    return;
  }
  const std::vector<CompletedPool> pools = completed_pools(indexer, cache, requests, spans, slots);
  write_rows<T>(cache, typed_key, typed_gate, slots, threads);
  write_pooled_keys<T>(indexer, cache, offset_bias, requests, pools, threads);
}

template <class T>
void widen(const std::byte* row, std::int64_t dim, float* out) {
  const T* values = reinterpret_cast<const T*>(row);
  for (std::int64_t d = 0; d < dim; ++d) {
    out[d] = static_cast<float>(values[d]);
  }
}

}  // namespace

void validate_index_cache(const IndexerGeometry& indexer, DType compute, const CacheView& cache) {
  indexer.validate();
  if (compute != DType::float32 && compute != DType::bfloat16) {
    throw Error("compute dtype", "float32 or bfloat16", std::string(name_of(compute)));
  }
  validate_cache("index cache", cache, indexer.cache_row_bytes(compute), size_of(compute));
}

void IndexKeyReader::read(std::int64_t begin, std::int64_t end, float* out) const {
  for (std::int64_t c = begin; c < end; ++c, out += dim_) {
    const std::byte* row = cache::key_row(cache_, requests_, request_, candidates_.key_position(c));
    if (compute_ == DType::float32) {
      widen<float>(row, dim_, out);
    } else {
      widen<bfloat16>(row, dim_, out);
    }
  }
}

}  // namespace headrace::selection

namespace headrace {

void append_index_keys(const IndexerGeometry& indexer, DType compute, const MutableCacheView& cache, ConstAnyView key,
                       ConstAnyView gate, View<const float> offset_bias, const Requests& requests,
                       View<const std::int64_t> slot_mapping, int threads) {
  selection::validate_index_cache(indexer, compute, cache);
  if (compute == DType::float32) {
    selection::append_typed<float>(indexer, cache, key, gate, offset_bias, requests, slot_mapping, threads);
  } else {
    selection::append_typed<bfloat16>(indexer, cache, key, gate, offset_bias, requests, slot_mapping, threads);
  }
}

}  // namespace headrace
