// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch_spec.h"
#include "headrace/cache.h"
#include "headrace/indexer.h"
#include "headrace/plan.h"
#include "headrace/tensor.h"
#include "headrace/view.h"

namespace headrace::app {

/// Tokens at positions [begin, end) of one request.
struct Piece {
  std::int64_t request = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t size() const noexcept { return end - begin; }
  bool operator==(const Piece&) const = default;
};

/// The steps in which a batch's new tokens arrive, `chunk` at a time (0: all at once), all requests advancing together.
/// A request of no new tokens takes part in the first step.
[[nodiscard]] std::int64_t query_steps(const std::vector<RequestSpec>& batch, std::int64_t chunk);
[[nodiscard]] std::vector<Piece> query_pieces(const std::vector<RequestSpec>& batch, std::int64_t chunk,
                                              std::int64_t step);

/// Cuts a batch's context into steps of at most `tokens` tokens, in order of position within each request.
[[nodiscard]] std::vector<std::vector<Piece>> context_steps(const std::vector<RequestSpec>& batch, std::int64_t tokens);

/// Which pages hold which request's tokens. Pages are handed out in a seeded random order, as after long service: a
/// path that forgot the block table would not go unnoticed.
class PageTable {
 public:
  static constexpr std::int64_t kPageSize = 64;

  PageTable(const std::vector<RequestSpec>& batch, std::uint64_t seed);
  [[nodiscard]] std::int64_t num_pages() const noexcept { return num_pages_; }
  [[nodiscard]] std::span<const std::int32_t> pages(std::int64_t request) const noexcept;
  [[nodiscard]] std::int64_t slot(std::int64_t request, std::int64_t position) const noexcept;

 private:
  std::int64_t num_pages_ = 0;
  std::vector<std::vector<std::int32_t>> pages_;
};

/// A cache with its memory: one row of `row_bytes` bytes for each slot of a page table.
class CacheMemory {
 public:
  CacheMemory() = default;
  /// @param scale  of an fp8 cache
  CacheMemory(const PageTable& table, std::int64_t row_bytes, float scale = 1.0F);
  [[nodiscard]] MutableCacheView view() noexcept;

 private:
  Tensor bytes_;
  std::int64_t num_pages_ = 0;
  std::int64_t row_bytes_ = 0;
  float scale_ = 1.0F;
};

/// What one step's stages read besides hidden states and caches, with its memory.
class Step {
 public:
  Step(const PageTable& table, std::vector<Piece> pieces);
  // The views point into the step.
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  ~Step() = default;

  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }
  [[nodiscard]] const std::vector<Piece>& pieces() const noexcept { return pieces_; }
  [[nodiscard]] Batch batch() const noexcept { return {query_len_, seq_len_, true}; }
  [[nodiscard]] Requests requests() const noexcept;
  [[nodiscard]] View<const std::int32_t> positions() const noexcept { return {positions_.data(), {tokens_}}; }
  [[nodiscard]] View<const std::int64_t> slots() const noexcept { return {slots_.data(), {tokens_}}; }

 private:
  std::vector<Piece> pieces_;
  std::int64_t tokens_ = 0;
  std::int64_t max_pages_ = 0;
  std::vector<std::int32_t> query_len_;
  std::vector<std::int32_t> seq_len_;
  std::vector<std::int32_t> query_start_;
  std::vector<std::int32_t> block_table_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int64_t> slots_;
};

/// Seeded normal hidden states of a step's tokens, [tokens, hidden_size]. A token's depend on the seed, the layer, its
/// request and its position alone, not on the step it arrives in.
[[nodiscard]] Tensor random_hidden(const Step& step, std::int64_t hidden_size, DType dtype, std::uint64_t seed,
                                   std::int64_t layer, int threads);

}  // namespace headrace::app
