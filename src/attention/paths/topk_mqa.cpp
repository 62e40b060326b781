// SPDX-License-Identifier: Apache-2.0
#include "attention/paths/topk_mqa.h"

#include <algorithm>

#include "attention/mha/bit_mask.h"
#include "attention/mqa/cpu.h"
#include "attention/project.h"
#include "attention/request.h"
#include "cache/row_codec.h"
#include "device/parallel.h"

namespace headrace::attention {
namespace {

/// One row of a query slice; a slice may hold rows of several requests.
struct RowReference {
  std::int64_t request;
  std::int64_t position;
  std::int64_t token;
};

struct MqaMemory {
  MqaMemory(Arena& arena, const Attention& attention, const Extents& extents, std::int64_t slice)
      : words(mask_words(extents.keys)), entries(page_entries(extents.keys)) {
    const Geometry& g = attention.geometry;
    rows = arena.take<RowReference>(slice);
    query = arena.take<float>(slice * g.num_heads * g.latent_dim());
    attended = arena.take<std::byte>(slice * g.num_heads * g.kv_lora_rank * size_of(attention.compute));
    masks = arena.take<std::uint64_t>(words * extents.threads);
    pages = arena.take<PageEntry>(entries * extents.threads);
    keys = arena.take<float>(mqa::kKeyTile * g.latent_dim() * extents.threads);
    scores = arena.take<float>(mqa::kKeyTile * g.num_heads * extents.threads);
    accumulated = arena.take<float>(g.num_heads * g.kv_lora_rank * extents.threads);
    state = arena.take<RowState>(g.num_heads * extents.threads);
    sink = arena.take<float>(g.num_heads);
    lse = arena.take<float>(g.num_heads * extents.threads);
  }

  /// A thread's share of an array that has one equal part a thread.
  template <class T>
  static std::span<T> part(std::span<T> all, std::int64_t size, int thread) noexcept {
    return all.subspan(static_cast<std::size_t>(size * thread), static_cast<std::size_t>(size));
  }

  std::int64_t words;
  std::int64_t entries;
  std::span<RowReference> rows;
  std::span<float> query;
  std::span<std::byte> attended;
  std::span<std::uint64_t> masks;
  std::span<PageEntry> pages;
  std::span<float> keys;
  std::span<float> scores;
  std::span<float> accumulated;
  std::span<RowState> state;
  std::span<float> sink;
  std::span<float> lse;
};

class MqaSlices {
 public:
  MqaSlices(const Call& call, const MqaMemory& memory)
      : call_(call),
        attention_(call.plan.attention()),
        geometry_(attention_.geometry),
        memory_(memory),
        threads_(call.plan.threads()) {
    if (!call.weights.sink.empty()) {
      for (std::int64_t h = 0; h < geometry_.num_heads; ++h) {
        memory_.sink[static_cast<std::size_t>(h)] = call.weights.sink(h);
      }
    }
  }

  void run_slice(std::int64_t rows) {
    const View<float> query(memory_.query.data(), {rows, geometry_.num_heads, geometry_.latent_dim()});
    const AnyView attended(memory_.attended.data(), attention_.compute, 3,
                           {rows, geometry_.num_heads, geometry_.kv_lora_rank},
                           {geometry_.num_heads * geometry_.kv_lora_rank, geometry_.kv_lora_rank, 1});
    for_runs_of_tokens(rows, [&](std::int64_t first, std::int64_t end) {
      const std::int64_t token = memory_.rows[static_cast<std::size_t>(first)].token;
      absorb_query(geometry_, call_.inputs.q.slice(token, token + end - first), call_.weights.kv_b_proj,
                   query.slice(first, end), threads_);
    });
    const cache::RowCodec codec(attention_.format, geometry_, attention_.compute, call_.inputs.cache.scale);
    device::parallel_for(rows, threads_, [&](std::int64_t r, int thread) {
      attend_row(memory_.rows[static_cast<std::size_t>(r)], codec, query.at(r), attended.slice(r, r + 1), thread);
    });
    for_runs_of_tokens(rows, [&](std::int64_t first, std::int64_t end) {
      const std::int64_t token = memory_.rows[static_cast<std::size_t>(first)].token;
      project_values(geometry_, attended.slice(first, end), call_.weights.kv_b_proj,
                     call_.outputs.out.slice(token, token + end - first), threads_);
    });
  }

 private:
  /// Rows whose tokens follow each other make one product; requests on this path often do.
  template <class Body>
  void for_runs_of_tokens(std::int64_t rows, const Body& body) const {
    std::int64_t first = 0;
    for (std::int64_t r = 1; r <= rows; ++r) {
      if (r == rows ||
          memory_.rows[static_cast<std::size_t>(r)].token != memory_.rows[static_cast<std::size_t>(r - 1)].token + 1) {
        body(first, r);
        first = r;
      }
    }
  }

  void attend_row(const RowReference& row, const cache::RowCodec& codec, const float* query, const AnyView& attended,
                  int thread) const {
    const Geometry& g = geometry_;
    const Request request = request_of(call_.inputs.requests, row.request);
    const MaskBuilder builder(attention_, call_.inputs, request,
                              MqaMemory::part(memory_.pages, memory_.entries, thread));
    const std::span<std::uint64_t> mask =
        MqaMemory::part(memory_.masks, memory_.words, thread)
            .first(static_cast<std::size_t>(mask_words(builder.key_end(row.position))));
    builder.build(row.position, mask);
    const mqa::Scratch scratch{MqaMemory::part(memory_.keys, mqa::kKeyTile * g.latent_dim(), thread),
                               MqaMemory::part(memory_.scores, mqa::kKeyTile * g.num_heads, thread),
                               MqaMemory::part(memory_.accumulated, g.num_heads * g.kv_lora_rank, thread),
                               MqaMemory::part(memory_.state, g.num_heads, thread)};
    const std::span<float> lse = MqaMemory::part(memory_.lse, g.num_heads, thread);
    mqa::attend_row(attention_, call_.inputs, codec, row.request, query, mask,
                    call_.weights.sink.empty() ? nullptr : memory_.sink.data(), scratch, attended, lse.data());
    if (!call_.outputs.lse.empty()) {
      for (std::int64_t h = 0; h < g.num_heads; ++h) {
        call_.outputs.lse(row.token, h) = lse[static_cast<std::size_t>(h)];
      }
    }
  }

  const Call& call_;
  const Attention& attention_;
  const Geometry& geometry_;
  const MqaMemory& memory_;
  int threads_;
};

}  // namespace

Support TopkMqa::support() const {
  static constexpr DType kCompute[] = {DType::float32, DType::bfloat16};
  static constexpr CacheFormat kFormats[] = {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8,
                                             CacheFormat::fp8_ds_mla};
  return {.compute = kCompute, .formats = kFormats};
}

std::vector<std::string> TopkMqa::unmet_by_rows(const Attention& /*attention*/, std::int64_t /*begin*/,
                                                std::int64_t /*end*/, bool /*exact*/) const {
  return {};
}

Work TopkMqa::count_work(const Attention& attention, std::int64_t begin, std::int64_t end,
                         std::int64_t /*query_slice*/) const {
  const Geometry& g = attention.geometry;
  // Rows select every key until the rule's width is reached, and that many from then on.
  const std::int64_t most = attention.rule.keys_at(end - 1);
  const std::int64_t growing_end = std::clamp(most, begin, end);
  const double growing = static_cast<double>(growing_end - begin);
  const double pairs = growing * (static_cast<double>(begin + growing_end) + 1.0) / 2.0 +
                       static_cast<double>(end - growing_end) * static_cast<double>(most);
  const auto rows = static_cast<double>(end - begin);
  const auto heads = static_cast<double>(g.num_heads);
  Work work;
  work.product_flops =
      2.0 * rows * heads * static_cast<double>(g.kv_lora_rank) * static_cast<double>(g.qk_nope_head_dim + g.v_head_dim);
  work.mqa_flops = 2.0 * pairs * heads * static_cast<double>(2 * g.kv_lora_rank + g.qk_rope_head_dim);
  work.mask_keys = rows * static_cast<double>(mask_words(end)) + pairs;
  work.cache_bytes = pairs * static_cast<double>(cache_row_bytes(attention.format, g));
  return work;
}

std::int64_t TopkMqa::workspace_bytes(const Attention& attention, const Extents& extents,
                                      const Blocking& blocking) const {
  Arena arena;
  const MqaMemory memory(arena, attention, extents, blocking.query_slice);
  return arena.used();
}

Blocking TopkMqa::choose_blocking(const Attention& attention, const Extents& extents, std::int64_t budget) const {
  Blocking blocking{.query_slice = 1, .context_block = 0};
  const std::int64_t one = workspace_bytes(attention, extents, blocking);
  blocking.query_slice = 65;
  const std::int64_t a_row = (workspace_bytes(attention, extents, blocking) - one) / 64 + 1;
  blocking.query_slice = std::clamp<std::int64_t>((budget - one) / a_row, 1, std::max<std::int64_t>(extents.rows, 1));
  while (blocking.query_slice > 1 && workspace_bytes(attention, extents, blocking) > budget) {
    blocking.query_slice -= (blocking.query_slice + 63) / 64;
  }
  return blocking;
}

void TopkMqa::run(const Call& call, std::span<const Rows> rows, Arena arena) const {
  Extents extents{.rows = 0, .keys = 0, .threads = call.plan.threads()};
  for (const Rows& r : rows) {
    extents.keys = std::max<std::int64_t>(extents.keys, call.inputs.requests.seq_len(r.request));
  }
  const std::int64_t slice = call.plan.blocking(Path::topk_mqa).query_slice;
  const MqaMemory memory(arena, call.plan.attention(), extents, slice);
  MqaSlices slices(call, memory);
  std::int64_t filled = 0;
  for (const Rows& r : rows) {
    const Request request = request_of(call.inputs.requests, r.request);
    for (std::int64_t position = r.begin; position < r.end; ++position) {
      memory.rows[static_cast<std::size_t>(filled++)] = {r.request, position, request.token_at(position)};
      if (filled == slice) {
        slices.run_slice(filled);
        filled = 0;
      }
    }
  }
  slices.run_slice(filled);
}

}  // namespace headrace::attention
