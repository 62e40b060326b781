// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "attention/mha/bit_mask.h"
#include "attention/mqa/cpu.h"
#include "attention/mqa/expected_union.h"
#include "attention/paths/path.h"
#include "attention/project.h"
#include "cache/requests.h"
#include "cache/row_codec.h"
#include "device/parallel.h"

namespace headrace::attention {
namespace {

/// A run of neighbouring rows of one request that may share their walk over keys.
struct TileReference {
  std::int64_t request;
  std::int64_t position;  ///< of its first row
  std::int64_t rows;
  std::int64_t token;      ///< of its first row
  std::int64_t slice_row;  ///< of its first row, in the slice
};

template <class Tiles>
struct MqaMemory {
  using Element = typename Tiles::Element;

  MqaMemory(Arena& arena, const Attention& attention, const Extents& extents, std::int64_t slice)
      : words(mask_words(extents.keys)),
        tile_rows(mqa::rows_a_tile(attention.geometry.num_heads)),
        query_ld(Tiles::padded(attention.geometry.latent_dim())) {
    const Geometry& g = attention.geometry;
    tiles = arena.take<TileReference>(slice);
    query = arena.take<Element>(slice * g.num_heads * query_ld);
    attended = arena.take<std::byte>(slice * g.num_heads * g.kv_lora_rank * size_of(attention.compute));
    lse = arena.take<float>(slice * g.num_heads);
    masks = arena.take<std::uint64_t>(tile_rows * words * extents.threads);
    maps = take_page_maps(arena, page_entries(attention.space, extents.keys), extents.threads);
    sink = arena.take<float>(g.num_heads);
    Arena one;
    const mqa::Scratch<Tiles> counted(one, g, words);
    scratch_bytes = one.used();
    scratch = arena.take<std::byte>(scratch_bytes * extents.threads);
  }

  /// A thread's share of an array that has one equal part a thread.
  template <class T>
  static std::span<T> part(std::span<T> all, std::int64_t size, int thread) noexcept {
    return all.subspan(static_cast<std::size_t>(size * thread), static_cast<std::size_t>(size));
  }

  std::int64_t words;
  std::int64_t tile_rows;
  std::int64_t query_ld;
  std::int64_t scratch_bytes = 0;
  std::span<TileReference> tiles;
  std::span<Element> query;
  std::span<std::byte> attended;
  std::span<float> lse;
  std::span<std::uint64_t> masks;
  std::span<PageMap> maps;  ///< one a thread
  std::span<float> sink;
  std::span<std::byte> scratch;
};

/// Collects tiles of rows, of several requests perhaps, and runs them a slice at a time.
template <class Tiles>
class MqaSlices {
 public:
  MqaSlices(const Call& call, const MqaMemory<Tiles>& memory, std::int64_t capacity)
      : call_(call),
        attention_(call.plan.attention()),
        geometry_(attention_.geometry),
        memory_(memory),
        capacity_(capacity),
        threads_(call.plan.threads()) {
    for (std::int64_t h = 0; h < geometry_.num_heads && !call.weights.sink.empty(); ++h) {
      memory_.sink[static_cast<std::size_t>(h)] = call.weights.sink(h);
    }
  }

  void add(const Rows& rows) {
    const cache::Request request = cache::request_of(call_.inputs.requests, rows.request);
    for (std::int64_t position = rows.begin; position < rows.end;) {
      const std::int64_t end = std::min(rows.end, (position / memory_.tile_rows + 1) * memory_.tile_rows);
      if (rows_ + end - position > capacity_) {
        flush();
      }
      memory_.tiles[static_cast<std::size_t>(tiles_++)] = {rows.request, position, end - position,
                                                           request.token_at(position), rows_};
      rows_ += end - position;
      position = end;
    }
  }

  void flush() {
    const AnyView query(
        View<typename Tiles::Element>(memory_.query.data(), {rows_, geometry_.num_heads, memory_.query_ld}));
    const AnyView attended(memory_.attended.data(), attention_.compute, 3,
                           {rows_, geometry_.num_heads, geometry_.kv_lora_rank},
                           {geometry_.num_heads * geometry_.kv_lora_rank, geometry_.kv_lora_rank, 1});
    if (memory_.query_ld != geometry_.latent_dim()) {
      std::fill(memory_.query.begin(), memory_.query.end(), typename Tiles::Element(0.0F));
    }
    for_runs_of_tokens([&](std::int64_t first, std::int64_t rows, std::int64_t token) {
      absorb_query(geometry_, call_.inputs.q.slice(token, token + rows), call_.weights.kv_b_proj,
                   query.slice(first, first + rows), threads_);
    });
    const cache::RowCodec codec(attention_.format, geometry_, attention_.compute, call_.inputs.cache.scale);
    device::parallel_for(tiles_, threads_, [&](std::int64_t t, int thread) {
      attend_tile(memory_.tiles[static_cast<std::size_t>(t)], codec, attended, thread);
    });
    for_runs_of_tokens([&](std::int64_t first, std::int64_t rows, std::int64_t token) {
      project_values(geometry_, attended.slice(first, first + rows), call_.weights.kv_b_proj,
                     call_.outputs.out.slice(token, token + rows), threads_);
    });
    tiles_ = 0;
    rows_ = 0;
  }

 private:
  /// Tiles whose tokens follow each other make one product; requests on this path often do.
  template <class Body>
  void for_runs_of_tokens(const Body& body) const {
    for (std::int64_t t = 0; t < tiles_;) {
      const TileReference& first = memory_.tiles[static_cast<std::size_t>(t)];
      std::int64_t rows = 0;
      while (t < tiles_ && memory_.tiles[static_cast<std::size_t>(t)].token == first.token + rows) {
        rows += memory_.tiles[static_cast<std::size_t>(t++)].rows;
      }
      body(first.slice_row, rows, first.token);
    }
  }

  void attend_tile(const TileReference& reference, const cache::RowCodec& codec, const AnyView& attended,
                   int thread) const {
    const Geometry& g = geometry_;
    const cache::Request request = cache::request_of(call_.inputs.requests, reference.request);
    const MaskBuilder builder(attention_, call_.inputs, request, memory_.maps[static_cast<std::size_t>(thread)]);
    const std::int64_t words =
        mask_words(mask_key_end(attention_.space, request, reference.position + reference.rows - 1));
    const View<std::uint64_t> masks(memory_.part(memory_.masks, memory_.tile_rows * memory_.words, thread).data(),
                                    {reference.rows, words});
    for (std::int64_t r = 0; r < reference.rows; ++r) {
      builder.build(reference.position + r, {masks.at(r), static_cast<std::size_t>(words)});
    }
    Arena arena(memory_.part(memory_.scratch, memory_.scratch_bytes, thread));
    const mqa::Scratch<Tiles> scratch(arena, g, memory_.words);
    const std::int64_t row = reference.slice_row;
    float* lse = memory_.lse.data() + row * g.num_heads;
    mqa::attend_rows<Tiles>(
        attention_, call_.inputs, codec, reference.request,
        {reference.rows, memory_.query.data() + row * g.num_heads * memory_.query_ld, memory_.query_ld, masks},
        call_.weights.sink.empty() ? nullptr : memory_.sink.data(), scratch,
        {attended.slice(row, row + reference.rows), lse});
    for (std::int64_t r = 0; r < reference.rows && !call_.outputs.lse.empty(); ++r) {
      for (std::int64_t h = 0; h < g.num_heads; ++h) {
        call_.outputs.lse(reference.token + r, h) = lse[r * g.num_heads + h];
      }
    }
  }

  const Call& call_;
  const Attention& attention_;
  const Geometry& geometry_;
  const MqaMemory<Tiles>& memory_;
  std::int64_t capacity_;
  int threads_;
  std::int64_t tiles_ = 0;
  std::int64_t rows_ = 0;
};

template <class Tiles>
void run_with(const Call& call, std::span<const Rows> rows, Arena arena) {
  Extents extents{.threads = call.plan.threads()};
  for (const Rows& r : rows) {
    extents.keys = std::max<std::int64_t>(extents.keys, call.inputs.requests.seq_len(r.request));
  }
  const std::int64_t slice = call.plan.blocking(Path::topk_mqa).query_slice;
  const MqaMemory<Tiles> memory(arena, call.plan.attention(), extents, slice);
  MqaSlices<Tiles> slices(call, memory, slice);
  for (const Rows& r : rows) {
    slices.add(r);
  }
  slices.flush();
}

template <class Tiles>
std::int64_t bytes_with(const Attention& attention, const Extents& extents, std::int64_t slice) {
  Arena arena;
  const MqaMemory<Tiles> memory(arena, attention, extents, slice);
  return arena.used();
}

class TopkMqa final : public CpuPath {
 public:
  [[nodiscard]] Work count_work(const Attention& attention, std::int64_t begin, std::int64_t end,
                                std::int64_t query_slice) const override;
  [[nodiscard]] std::int64_t workspace_bytes(const Attention& attention, const Extents& extents,
                                             const Blocking& blocking) const override;
  [[nodiscard]] Blocking choose_blocking(const Attention& attention, const Extents& extents,
                                         std::int64_t budget) const override;
  /// Serves any rows of any dimensions.
  [[nodiscard]] bool serves_rows(const Attention& /*attention*/, std::int64_t /*begin*/, std::int64_t /*end*/,
                                 bool /*exact*/) const override {
    return true;
  }
  void run(const Call& call, std::span<const Rows> rows, Arena arena) const override;

 private:
  [[nodiscard]] Support support() const override;
  [[nodiscard]] std::vector<std::string> unmet_by_geometry(const Geometry& /*geometry*/) const override { return {}; }
  [[nodiscard]] std::vector<std::string> unmet_by_rows(const Attention& attention, std::int64_t begin, std::int64_t end,
                                                       bool exact) const override;
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
                         std::int64_t query_slice) const {
  const Geometry& g = attention.geometry;
  const auto rows = static_cast<double>(end - begin);
  const auto heads = static_cast<double>(g.num_heads);
  const std::int64_t tile = std::min(mqa::rows_a_tile(g.num_heads), end - begin);
  const auto tile_rows = static_cast<double>(tile);

  // Rows select every key until the rule's width is reached: neighbours' selections are one.
  const std::int64_t most = attention.rule.keys_at(end - 1);
  const std::int64_t growing_end = std::clamp(most, begin, end);
  const double growing =
      static_cast<double>(growing_end - begin) * (static_cast<double>(begin + growing_end) + 1.0) / 2.0;
  // From then on they select so many, of which neighbours share most.
  const auto full_rows = static_cast<double>(end - growing_end);
  const auto keys = static_cast<double>(most);
  const double joined = std::min(mqa::expected_union(keys, tile_rows), static_cast<double>(end));
  const bool packed = mqa::packing_pays(joined, keys * tile_rows, tile, g.num_heads);
  const double pairs = growing + full_rows * (packed ? joined : keys);
  const double walked = growing / tile_rows + full_rows * (packed ? joined / tile_rows : keys);

  Work work;
  work.product_flops =
      2.0 * rows * heads * static_cast<double>(g.kv_lora_rank) * static_cast<double>(g.qk_nope_head_dim + g.v_head_dim);
  work.weight_bytes = kv_b_proj_bytes(attention) * std::ceil(rows / static_cast<double>(query_slice));
  work.mqa_flops = 2.0 * pairs * heads * static_cast<double>(2 * g.kv_lora_rank + g.qk_rope_head_dim);
  work.gathered = walked * static_cast<double>(g.latent_dim());
  work.mask_keys = rows * static_cast<double>(mask_words(end)) + growing / 64.0 + full_rows * keys;
  return work;
}

std::int64_t TopkMqa::workspace_bytes(const Attention& attention, const Extents& extents,
                                      const Blocking& blocking) const {
  return uses_pairs(attention.compute) ? bytes_with<PairTiles>(attention, extents, blocking.query_slice)
                                       : bytes_with<FloatTiles>(attention, extents, blocking.query_slice);
}

Blocking TopkMqa::choose_blocking(const Attention& attention, const Extents& extents, std::int64_t budget) const {
  // A slice holds whole tiles, so that what a tile computes does not depend on where slices end.
  const std::int64_t least = mqa::rows_a_tile(attention.geometry.num_heads);
  const std::int64_t rows = std::max(extents.rows, least);
  Blocking blocking{.query_slice = least, .context_block = 0};
  const std::int64_t one = workspace_bytes(attention, extents, blocking);
  blocking.query_slice = least + 64;
  const std::int64_t a_row = (workspace_bytes(attention, extents, blocking) - one) / 64 + 1;
  blocking.query_slice = std::clamp(least + (budget - one) / a_row, least, rows);
  while (blocking.query_slice > least && workspace_bytes(attention, extents, blocking) > budget) {
    blocking.query_slice = std::max(least, blocking.query_slice - (blocking.query_slice + 63) / 64);
  }
  return blocking;
}

void TopkMqa::run(const Call& call, std::span<const Rows> rows, Arena arena) const {
  if (uses_pairs(call.plan.attention().compute)) {
    run_with<PairTiles>(call, rows, arena);
  } else {
    run_with<FloatTiles>(call, rows, arena);
  }
}

const CpuPath& topk_mqa() {
  static const TopkMqa algorithm;
  return algorithm;
}

}  // namespace headrace::attention
