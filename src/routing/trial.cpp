// SPDX-License-Identifier: Apache-2.0
#include "routing/trial.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "layer/random.h"

namespace headrace::routing {
namespace {

constexpr std::int64_t kPageSize = 64;

std::int64_t pages_of(std::int64_t keys) noexcept { return (keys + kPageSize - 1) / kPageSize; }

}  // namespace

Trial::Trial(const Attention& attention, std::span<const TrialRequest> requests,
             const std::optional<selection::Generator>& generator, int threads, std::uint64_t seed)
    : attention_(attention), threads_(threads) {
  const Geometry& g = attention.geometry;
  query_start_.push_back(0);
  std::int64_t most_pages = 1;
  for (const TrialRequest& request : requests) {
    query_len_.push_back(request.query_len);
    seq_len_.push_back(request.query_len + request.context_len);
    tokens_ += request.query_len;
    query_start_.push_back(static_cast<std::int32_t>(tokens_));
    most_pages = std::max(most_pages, pages_of(seq_len_.back()));
    selected_pairs_ +=
        static_cast<std::int64_t>(request.query_len) * (2 * request.context_len + request.query_len + 1) / 2;
  }
  const auto count = static_cast<std::int64_t>(requests.size());
  block_table_.assign(static_cast<std::size_t>(count * most_pages), 0);
  std::int32_t next_page = 0;
  for (std::int64_t b = 0; b < count; ++b) {
    for (std::int64_t i = 0; i < pages_of(seq_len_[static_cast<std::size_t>(b)]); ++i) {
      block_table_[static_cast<std::size_t>(b * most_pages + i)] = next_page++;
    }
  }
  requests_ = {View<const std::int32_t>(query_start_.data(), {count + 1}),
               View<const std::int32_t>(seq_len_.data(), {count}),
               View<const std::int32_t>(block_table_.data(), {count, most_pages})};

  q_ = Tensor(attention.compute, {tokens_, g.num_heads, g.qk_head_dim()});
  kv_b_proj_ = Tensor(attention.compute, {g.num_heads * (g.qk_nope_head_dim + g.v_head_dim), g.kv_lora_rank});
  out_ = Tensor(attention.compute, {tokens_, g.num_heads, g.v_head_dim});
  lse_ = Tensor(DType::float32, {tokens_, g.num_heads});
  layer::fill_normal(q_.view(), seed, 0, 1.0, threads);
  layer::fill_normal(kv_b_proj_.view(), seed, 1, 1.0 / std::sqrt(static_cast<double>(g.kv_lora_rank)), threads);

  const std::int64_t row_bytes = cache_row_bytes(attention.format, g);
  const std::int64_t pages = std::max<std::int64_t>(next_page, 1);
  cache_ = Tensor(DType::uint8, {pages * kPageSize * row_bytes});
  cache_view_ = {cache_.data(), pages, kPageSize, kPageSize * row_bytes, row_bytes, 1.0F, 0};
  fill_cache(seed);
  if (generator) {
    fill_selections(*generator, requests);
  }
}

void Trial::fill_cache(std::uint64_t seed) {
  const Geometry& g = attention_.geometry;
  const std::int64_t slots = cache_view_.num_slots();
  const MutableCacheView target{cache_.data(),
                                cache_view_.num_pages,
                                cache_view_.page_size,
                                cache_view_.page_stride,
                                cache_view_.row_stride,
                                1.0F,
                                0};
  constexpr std::int64_t kRows = 4096;
  for (std::int64_t first = 0; first < slots; first += kRows) {
    const std::int64_t rows = std::min(kRows, slots - first);
    Tensor latent(attention_.compute, {rows, g.kv_lora_rank});
    Tensor rope(attention_.compute, {rows, g.qk_rope_head_dim});
    layer::fill_normal(latent.view(), seed, 2 + 2 * static_cast<std::uint64_t>(first), 1.0, threads_);
    layer::fill_normal(rope.view(), seed, 3 + 2 * static_cast<std::uint64_t>(first), 1.0, threads_);
    std::vector<std::int64_t> slot_mapping(static_cast<std::size_t>(rows));
    for (std::int64_t i = 0; i < rows; ++i) {
      slot_mapping[static_cast<std::size_t>(i)] = first + i;
    }
    append(g, attention_.format, target, latent.view(), rope.view(),
           View<const std::int64_t>(slot_mapping.data(), {rows}), threads_);
  }
}

void Trial::fill_selections(const selection::Generator& generator, std::span<const TrialRequest> requests) {
  index_ = Tensor(DType::int32, {tokens_, generator.width()});
  count_ = Tensor(DType::int32, {tokens_});
  const View<std::int32_t> index = index_.view_as<std::int32_t>();
  const View<std::int32_t> count = count_.view_as<std::int32_t>();
  for (std::size_t b = 0; b < requests.size(); ++b) {
    const std::int64_t begin = query_start_[b];
    const std::int64_t end = query_start_[b + 1];
    generator.fill(static_cast<std::int64_t>(b), requests[b].context_len, index.slice(begin, end),
                   count.slice(begin, end));
  }
  selected_pairs_ = 0;
  for (std::int64_t t = 0; t < tokens_; ++t) {
    selected_pairs_ += count(t);
  }
}

Plan Trial::make_plan(std::optional<Path> force, const std::optional<Profile>& profile) const {
  Limits limits;
  limits.device.threads = threads_;
  Hints hints;
  hints.force = force;
  hints.profile = profile ? *profile : Profile::nominal_cpu(attention_.compute);
  return plan(attention_, {query_len_, seq_len_, true}, limits, hints);
}

double Trial::run_ms(const Plan& plan) {
  if (workspace_.empty() || workspace_.size_bytes() < plan.workspace_bytes()) {
    workspace_ = Tensor(DType::uint8, {plan.workspace_bytes()});
  }
  Inputs inputs;
  inputs.q = q_.view();
  inputs.cache = cache_view_;
  inputs.requests = requests_;
  if (!index_.empty()) {
    inputs.selection = {index_.view_as<std::int32_t>(), count_.view_as<std::int32_t>(),
                        SelectionSpace::request_position};
  }
  const Weights weights{kv_b_proj_.view(), {}};
  const Outputs outputs{out_.view(), lse_.view_as<float>()};
  const std::span<std::byte> workspace(workspace_.data(), static_cast<std::size_t>(workspace_.size_bytes()));
  const auto start = std::chrono::steady_clock::now();
  attend(plan, weights, inputs, outputs, workspace);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace headrace::routing
