// SPDX-License-Identifier: Apache-2.0
#include "attention/paths/mha_steps.h"

#include <algorithm>

#include "attention/merge.h"
#include "attention/mha/bit_mask.h"
#include "attention/mha/cpu.h"
#include "attention/paths/key_blocks.h"
#include "attention/row_values.h"
#include "cache/requests.h"
#include "device/parallel.h"

namespace headrace::attention {
namespace {

constexpr std::int64_t kRowsATask = 64;
constexpr std::int64_t kLongestBlock = 1024;

/// The workspace of one call, cut into its arrays.
template <class Tiles>
struct MhaMemory {
  MhaMemory(Arena& arena, const Attention& attention, const Extents& extents, const Blocking& blocking, MaskUse mask)
      : words(mask == MaskUse::selection ? mask_words(extents.keys) : 0),
        blocks(arena, attention, blocking.context_block) {
    const Geometry& g = attention.geometry;
    accumulated = arena.take<float>(blocking.query_slice * g.num_heads * g.v_head_dim);
    state = arena.take<RowState>(blocking.query_slice * g.num_heads);
    masks = arena.take<std::uint64_t>(blocking.query_slice * words);
    maps = take_page_maps(arena, mask == MaskUse::selection ? page_entries(attention.space, extents.keys) : 0,
                          extents.threads);
    scratch = arena.take<std::byte>(mha::scratch_bytes(g) * extents.threads);
  }

  std::int64_t words;
  KeyBlocks<Tiles> blocks;
  std::span<float> accumulated;
  std::span<RowState> state;
  std::span<std::uint64_t> masks;
  std::span<PageMap> maps;  ///< one a thread
  std::span<std::byte> scratch;
};

/// Runs one request's rows.
template <class Tiles>
class MhaRequest {
 public:
  MhaRequest(const Call& call, const cache::Request& request, MaskUse mask, const MhaMemory<Tiles>& memory)
      : call_(call),
        attention_(call.plan.attention()),
        geometry_(attention_.geometry),
        request_(request),
        mask_(mask),
        memory_(memory),
        threads_(call.plan.threads()) {}

  void run_slice(std::int64_t begin, std::int64_t end, std::int64_t context_block) {
    const std::int64_t rows = end - begin;
    mha::QuerySlice slice;
    slice.first_position = begin;
    slice.q = call_.inputs.q.slice(request_.token_at(begin), request_.token_at(end));
    slice.accumulated = View<float>(memory_.accumulated.data(), {rows, geometry_.num_heads, geometry_.v_head_dim});
    slice.state = View<RowState>(memory_.state.data(), {rows, geometry_.num_heads});
    std::fill_n(slice.accumulated.data(), slice.accumulated.size(), 0.0F);
    std::fill_n(slice.state.data(), slice.state.size(), RowState{});
    std::int64_t key_end = end;
    if (mask_ == MaskUse::selection) {
      key_end = build_masks(begin, rows);
      slice.mask = View<const std::uint64_t>(memory_.masks.data(), {rows, memory_.words});
    }
    for (std::int64_t first = 0; first < key_end; first += context_block) {
      const std::int64_t count = std::min(context_block, key_end - first);
      if (mask_ == MaskUse::selection && !any_key(slice.mask, first, count)) {
        continue;
      }
      const auto keys = memory_.blocks.make(call_, request_, first, count);
      mha::attend_block<Tiles>(geometry_, static_cast<float>(attention_.scale), keys, slice,
                               View<std::byte>(memory_.scratch.data(), {threads_, mha::scratch_bytes(geometry_)}),
                               threads_);
    }
    finish(slice, request_.token_at(begin));
  }

 private:
  /// Masks of the slice's rows; returns the end of the keys they reach.
  std::int64_t build_masks(std::int64_t begin, std::int64_t rows) {
    const std::int64_t tasks = (rows + kRowsATask - 1) / kRowsATask;
    device::parallel_for(tasks, threads_, [&](std::int64_t task, int thread) {
      const MaskBuilder builder(attention_, call_.inputs, request_, memory_.maps[static_cast<std::size_t>(thread)]);
      for (std::int64_t r = task * kRowsATask; r < std::min(rows, (task + 1) * kRowsATask); ++r) {
        builder.build(begin + r, memory_.masks.subspan(static_cast<std::size_t>(r * memory_.words),
                                                       static_cast<std::size_t>(memory_.words)));
      }
    });
    return mask_key_end(attention_.space, request_, begin + rows - 1);
  }

  static bool any_key(const View<const std::uint64_t>& mask, std::int64_t first, std::int64_t count) noexcept {
    for (std::int64_t r = 0; r < mask.dim(0); ++r) {
      for (std::int64_t w = first / kMaskKeys; w < mask_words(first + count); ++w) {
        if (mask(r, w) != 0) {
          return true;
        }
      }
    }
    return false;
  }

  void finish(const mha::QuerySlice& slice, std::int64_t first_token) {
    const float* sinks = call_.weights.sink.empty() ? nullptr : call_.weights.sink.data();
    const std::int64_t sink_stride = call_.weights.sink.empty() ? 0 : call_.weights.sink.stride(0);
    const std::int64_t rows = slice.state.dim(0);
    device::parallel_for((rows + kRowsATask - 1) / kRowsATask, threads_, [&](std::int64_t task, int) {
      for (std::int64_t r = task * kRowsATask; r < std::min(rows, (task + 1) * kRowsATask); ++r) {
        for (std::int64_t h = 0; h < geometry_.num_heads; ++h) {
          float lse = 0.0F;
          const float factor = finish_row(slice.state(r, h), sinks == nullptr ? nullptr : sinks + h * sink_stride, lse);
          scale_values(geometry_.v_head_dim, slice.accumulated.at(r, h), factor);
          store_floats(slice.accumulated.at(r, h), geometry_.v_head_dim, call_.outputs.out, first_token + r, h);
          if (!call_.outputs.lse.empty()) {
            call_.outputs.lse(first_token + r, h) = lse;
          }
        }
      }
    });
  }

  const Call& call_;
  const Attention& attention_;
  const Geometry& geometry_;
  cache::Request request_;
  MaskUse mask_;
  const MhaMemory<Tiles>& memory_;
  int threads_;
};

Path path_of(MaskUse mask) noexcept { return mask == MaskUse::causal ? Path::dense_mha : Path::masked_mha; }

template <class Tiles>
void run_with(const Call& call, std::span<const Rows> rows, MaskUse mask, Arena arena) {
  const Blocking& blocking = call.plan.blocking(path_of(mask));
  Extents extents{.threads = call.plan.threads()};
  for (const Rows& r : rows) {
    extents.keys = std::max<std::int64_t>(extents.keys, call.inputs.requests.seq_len(r.request));
  }
  const MhaMemory<Tiles> memory(arena, call.plan.attention(), extents, blocking, mask);
  for (const Rows& r : rows) {
    MhaRequest<Tiles> request(call, cache::request_of(call.inputs.requests, r.request), mask, memory);
    for (std::int64_t begin = r.begin; begin < r.end; begin += blocking.query_slice) {
      request.run_slice(begin, std::min(r.end, begin + blocking.query_slice), blocking.context_block);
    }
  }
}

template <class Tiles>
std::int64_t bytes_with(const Attention& attention, const Extents& extents, const Blocking& blocking, MaskUse mask) {
  Arena arena;
  const MhaMemory<Tiles> memory(arena, attention, extents, blocking, mask);
  return arena.used();
}

}  // namespace

void MhaAlgorithm::run(const Call& call, std::span<const Rows> rows, Arena arena) const {
  if (uses_pairs(call.plan.attention().compute)) {
    run_with<PairTiles>(call, rows, mask_, arena);
  } else {
    run_with<FloatTiles>(call, rows, mask_, arena);
  }
}

std::int64_t MhaAlgorithm::workspace_bytes(const Attention& attention, const Extents& extents,
                                           const Blocking& blocking) const {
  return uses_pairs(attention.compute) ? bytes_with<PairTiles>(attention, extents, blocking, mask_)
                                       : bytes_with<FloatTiles>(attention, extents, blocking, mask_);
}

Blocking MhaAlgorithm::choose_blocking(const Attention& attention, const Extents& extents, std::int64_t budget) const {
  const std::int64_t all_keys = std::max(kMaskKeys, mask_words(extents.keys) * kMaskKeys);
  const std::int64_t all_rows = std::max<std::int64_t>(extents.request_rows, 1);
  Blocking blocking{.query_slice = 1, .context_block = std::min(kLongestBlock, all_keys)};
  const auto bytes = [&] { return workspace_bytes(attention, extents, blocking); };
  // A block takes at most half of the budget, so that slices are not starved by it.
  while (blocking.context_block > kMaskKeys && bytes() > budget / 2) {
    blocking.context_block = mask_words(blocking.context_block / 2) * kMaskKeys;
  }
  const std::int64_t one = bytes();
  blocking.query_slice = 65;
  const std::int64_t a_row = (bytes() - one) / 64 + 1;
  blocking.query_slice = std::clamp<std::int64_t>((budget - one) / a_row, 1, all_rows);
  while (blocking.query_slice > 1 && bytes() > budget) {
    blocking.query_slice -= (blocking.query_slice + 63) / 64;
  }
  return blocking;
}

Support MhaAlgorithm::support() const {
  static constexpr DType kCompute[] = {DType::float32, DType::bfloat16};
  static constexpr CacheFormat kFormats[] = {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8,
                                             CacheFormat::fp8_ds_mla};
  return {.compute = kCompute, .formats = kFormats};
}

Work count_mha_work(const Attention& attention, std::int64_t begin, std::int64_t end, std::int64_t query_slice) {
  const Geometry& g = attention.geometry;
  const auto rows = static_cast<double>(end - begin);
  const double pairs = rows * (static_cast<double>(begin + end) + 1.0) / 2.0;
  const auto heads = static_cast<double>(g.num_heads);
  // Every slice gathers and up-projects the keys up to its own last row.
  double keys = 0.0;
  Work work;
  for (std::int64_t slice_end = begin; slice_end < end;) {
    slice_end = std::min(end, slice_end + query_slice);
    keys += static_cast<double>(slice_end);
    work.weight_bytes += kv_b_proj_bytes(attention);
  }
  work.product_flops =
      2.0 * keys * static_cast<double>(g.kv_lora_rank) * heads * static_cast<double>(g.qk_nope_head_dim + g.v_head_dim);
  work.mha_flops = 2.0 * pairs * heads * static_cast<double>(g.qk_head_dim() + g.v_head_dim);
  work.gathered = keys * static_cast<double>(g.latent_dim());
  return work;
}

}  // namespace headrace::attention
