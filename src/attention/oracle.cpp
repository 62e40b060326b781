// SPDX-License-Identifier: Apache-2.0
#include "attention/oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>

#include "device/parallel.h"
#include "headrace/error.h"

namespace headrace::attention {
namespace {

std::size_t at(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

template <class T>
T load(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// ---- which keys a row attends to ------------------------------------------------------------------------------------

/// Cache slot of a request's key.
std::int64_t slot_of(const Inputs& inputs, std::int64_t request, std::int64_t key) {
  const std::int64_t page = inputs.requests.block_table(request, key / inputs.cache.page_size);
  if (page < 0 || page >= inputs.cache.num_pages) {
    throw Error("block_table[" + std::to_string(request) + ", " + std::to_string(key / inputs.cache.page_size) + "]",
                "a page in [0, " + std::to_string(inputs.cache.num_pages) + ")", std::to_string(page));
  }
  return page * inputs.cache.page_size + key % inputs.cache.page_size;
}

std::vector<std::int64_t> slots_of_first(const Inputs& inputs, std::int64_t request, std::int64_t keys) {
  std::vector<std::int64_t> slots(at(keys));
  for (std::int64_t key = 0; key < keys; ++key) {
    slots[at(key)] = slot_of(inputs, request, key);
  }
  return slots;
}

void sort_and_drop_repeats(std::vector<std::int64_t>& entries) {
  std::sort(entries.begin(), entries.end());
  entries.erase(std::unique(entries.begin(), entries.end()), entries.end());
}

/// The entries of a token's selection that count, ascending, each once.
std::vector<std::int64_t> selected_entries(const Selection& selection, std::int64_t token) {
  if (selection.index.empty()) {
    throw Error("selection.index", "a selection, for the rule does not cover every row", "an empty view");
  }
  const std::int64_t width = selection.index.dim(1);
  const std::int64_t count =
      selection.count.empty() ? width : std::clamp<std::int64_t>(selection.count(token), 0, width);
  std::vector<std::int64_t> entries;
  for (std::int64_t column = 0; column < count; ++column) {
    entries.push_back(selection.index(token, column));
  }
  sort_and_drop_repeats(entries);
  return entries;
}

/// Cache slots of the keys that the row attends to: for each attended key one.
std::vector<std::int64_t> attended_slots(const Attention& attention, const Inputs& inputs, const OracleQuery& query) {
  if (attention.rule.covers(query.position)) {
    return slots_of_first(inputs, query.request, query.position + 1);
  }
  std::vector<std::int64_t> slots;
  const std::vector<std::int64_t> entries = selected_entries(inputs.selection, query.token);
  if (inputs.selection.space == SelectionSpace::request_position) {
    for (const std::int64_t key : entries) {
      if (key >= 0 && key <= query.position) {
        slots.push_back(slot_of(inputs, query.request, key));
      }
    }
    return slots;
  }
  std::vector<std::int64_t> own = slots_of_first(inputs, query.request, inputs.requests.seq_len(query.request));
  sort_and_drop_repeats(own);
  std::set_intersection(entries.begin(), entries.end(), own.begin(), own.end(), std::back_inserter(slots));
  return slots;
}

// ---- what the cache holds -------------------------------------------------------------------------------------------

float rounded(DType compute, float value) noexcept {
  return compute == DType::bfloat16 ? static_cast<float>(bfloat16(value)) : value;
}

/// Value i of a row (latent, then rope key) before it is rounded to the compute dtype.
float dequantised(const Attention& attention, const CacheView& cache, const std::byte* row, std::int64_t i) {
  switch (attention.format) {
    case CacheFormat::float32:
      return load<float>(row + 4 * i);
    case CacheFormat::bfloat16:
      return static_cast<float>(load<bfloat16>(row + 2 * i));
    case CacheFormat::fp8:
      return static_cast<float>(load<float8_e4m3>(row + i)) * cache.scale;
    case CacheFormat::fp8_ds_mla: {
      constexpr std::int64_t kLatent = 512;
      constexpr std::int64_t kGroup = 128;
      constexpr std::int64_t kRopeOffset = kLatent + 4 * (kLatent / kGroup);
      if (i >= kLatent) {
        return static_cast<float>(load<bfloat16>(row + kRopeOffset + 2 * (i - kLatent)));
      }
      return static_cast<float>(load<float8_e4m3>(row + i)) * load<float>(row + kLatent + 4 * (i / kGroup));
    }
  }
  return 0.0F;
}

/// The attended keys, [n, R + rope]. Float holds both compute dtypes without loss.
std::vector<float> gather(const Attention& attention, const CacheView& cache, std::span<const std::int64_t> slots) {
  const std::int64_t dim = attention.geometry.latent_dim();
  std::vector<float> keys;
  keys.reserve(slots.size() * at(dim));
  for (const std::int64_t slot : slots) {
    const std::byte* row = cache.row(slot);
    for (std::int64_t i = 0; i < dim; ++i) {
      keys.push_back(rounded(attention.compute, dequantised(attention, cache, row, i)));
    }
  }
  return keys;
}

// ---- arithmetic in float64 ------------------------------------------------------------------------------------------

/// n elements from a view of the compute dtype, `offset` and `stride` in elements.
void widen(const ConstAnyView& view, std::int64_t offset, std::int64_t stride, std::span<double> to) {
  std::int64_t from = offset;
  for (double& value : to) {
    value = view.dtype() == DType::bfloat16
                ? static_cast<double>(static_cast<float>(static_cast<const bfloat16*>(view.data())[from]))
                : static_cast<double>(static_cast<const float*>(view.data())[from]);
    from += stride;
  }
}

// The pragmas let the compiler vectorise: float64 has digits to spare for any order of summation.
double dot(std::int64_t n, const double* a, const double* b) noexcept {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

double squared_products(std::int64_t n, const double* a, const double* b) noexcept {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    sum += (a[i] * b[i]) * (a[i] * b[i]);
  }
  return sum;
}

void add_scaled(std::int64_t n, double factor, const double* x, double* y) noexcept {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] += factor * x[i];
  }
}

/// Calls body(first, count, keys) for runs of keys widened to float64, small enough to stay in the first-level cache
/// while all heads use them.
template <class Body>
void for_each_run(std::span<const float> keys, std::int64_t dim, const Body& body) {
  constexpr std::int64_t kRun = 4;
  std::vector<double> wide(at(kRun * dim));
  const std::int64_t n = static_cast<std::int64_t>(keys.size()) / dim;
  for (std::int64_t first = 0; first < n; first += kRun) {
    const std::int64_t count = std::min(kRun, n - first);
    std::copy_n(keys.begin() + first * dim, count * dim, wide.begin());
    body(first, count, wide.data());
  }
}

/// Row `row` of kv_b_proj, [R].
void weight_row(const Weights& weights, std::int64_t row, std::span<double> to) {
  const ConstAnyView& w = weights.kv_b_proj;
  widen(w, row * w.stride(0), w.stride(1), to);
}

/// Per head the query in the space of the cache's rows, scale included: [H, R + rope] of (W_UK^T q_nope, q_rope).
std::vector<double> queries_in_cache_space(const Attention& attention, const Weights& weights, const Inputs& inputs,
                                           std::int64_t token) {
  const Geometry& g = attention.geometry;
  std::vector<double> queries(at(g.num_heads * g.latent_dim()));
  std::vector<double> q(at(g.qk_head_dim()));
  std::vector<double> w(at(g.kv_lora_rank));
  for (std::int64_t head = 0; head < g.num_heads; ++head) {
    widen(inputs.q, token * inputs.q.stride(0) + head * inputs.q.stride(1), inputs.q.stride(2), q);
    double* query = &queries[at(head * g.latent_dim())];
    for (std::int64_t i = 0; i < g.qk_nope_head_dim; ++i) {
      weight_row(weights, head * (g.qk_nope_head_dim + g.v_head_dim) + i, w);
      add_scaled(g.kv_lora_rank, attention.scale * q[at(i)], w.data(), query);
    }
    for (std::int64_t i = 0; i < g.qk_rope_head_dim; ++i) {
      query[g.kv_lora_rank + i] = attention.scale * q[at(g.qk_nope_head_dim + i)];
    }
  }
  return queries;
}

/// Turns a head's scores into weights that sum to one; returns the log-sum-exp.
double softmax(std::span<double> scores) {
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (double& score : scores) {
    score = std::exp(score - max);
    sum += score;
  }
  for (double& score : scores) {
    score /= sum;
  }
  return max + std::log(sum);
}

OracleRow compute_row(const Attention& attention, const Weights& weights, const Inputs& inputs,
                      const OracleQuery& query) {
  const Geometry& g = attention.geometry;
  const std::int64_t dim = g.latent_dim();
  OracleRow result{std::vector<double>(at(g.num_heads * g.v_head_dim)),
                   std::vector<double>(at(g.num_heads), -std::numeric_limits<double>::infinity()),
                   std::vector<double>(at(g.num_heads))};
  const std::vector<std::int64_t> slots = attended_slots(attention, inputs, query);
  if (slots.empty()) {
    return result;
  }
  const std::vector<float> keys = gather(attention, inputs.cache, slots);
  const std::vector<double> queries = queries_in_cache_space(attention, weights, inputs, query.token);

  const std::size_t n = slots.size();
  std::vector<double> scores(at(g.num_heads) * n);
  for_each_run(keys, dim, [&](std::int64_t first, std::int64_t count, const double* run) {
    for (std::int64_t head = 0; head < g.num_heads; ++head) {
      for (std::int64_t key = 0; key < count; ++key) {
        const double* const query_of_head = &queries[at(head * dim)];
        scores[at(head) * n + at(first + key)] = dot(dim, query_of_head, run + key * dim);
        result.score_norm[at(head)] =
            std::max(result.score_norm[at(head)], std::sqrt(squared_products(dim, query_of_head, run + key * dim)));
      }
    }
  });
  for (std::int64_t head = 0; head < g.num_heads; ++head) {
    result.lse[at(head)] = softmax(std::span(scores).subspan(at(head) * n, n));
  }

  std::vector<double> mixed(at(g.num_heads * g.kv_lora_rank));  // sum of p_j c_j
  for_each_run(keys, dim, [&](std::int64_t first, std::int64_t count, const double* run) {
    for (std::int64_t head = 0; head < g.num_heads; ++head) {
      for (std::int64_t key = 0; key < count; ++key) {
        add_scaled(g.kv_lora_rank, scores[at(head) * n + at(first + key)], run + key * dim,
                   &mixed[at(head * g.kv_lora_rank)]);
      }
    }
  });

  std::vector<double> w(at(g.kv_lora_rank));
  for (std::int64_t head = 0; head < g.num_heads; ++head) {
    const double kept =
        weights.sink.empty() ? 1.0 : 1.0 / (1.0 + std::exp(double{weights.sink(head)} - result.lse[at(head)]));
    for (std::int64_t i = 0; i < g.v_head_dim; ++i) {
      weight_row(weights, head * (g.qk_nope_head_dim + g.v_head_dim) + g.qk_nope_head_dim + i, w);
      result.out[at(head * g.v_head_dim + i)] = kept * dot(g.kv_lora_rank, w.data(), &mixed[at(head * g.kv_lora_rank)]);
    }
  }
  return result;
}

}  // namespace

OracleRow oracle_row(const Attention& attention, const Weights& weights, const Inputs& inputs, std::int64_t request,
                     std::int64_t token, std::int64_t position) {
  return compute_row(attention, weights, inputs, {request, token, position});
}

std::vector<float> oracle_cache_row(const Attention& attention, const CacheView& cache, std::int64_t slot) {
  return gather(attention, cache, std::span(&slot, 1));
}

std::vector<OracleRow> oracle_rows(const Attention& attention, const Weights& weights, const Inputs& inputs,
                                   std::span<const OracleQuery> queries, int threads) {
  std::vector<OracleRow> rows(queries.size());
  device::parallel_for(static_cast<std::int64_t>(queries.size()), threads, [&](std::int64_t i, int) {
    rows[at(i)] = compute_row(attention, weights, inputs, queries[at(i)]);
  });
  return rows;
}

}  // namespace headrace::attention
