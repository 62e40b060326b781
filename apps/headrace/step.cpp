// SPDX-License-Identifier: Apache-2.0
#include "step.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "device/parallel.h"
#include "layer/random.h"

namespace headrace::app {
namespace {

std::size_t at(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

}  // namespace

std::int64_t query_steps(const std::vector<RequestSpec>& batch, std::int64_t chunk) {
  std::int64_t steps = 1;
  if (chunk > 0) {
    for (const RequestSpec& request : batch) {
      steps = std::max(steps, ceil_div(request.query_len, chunk));
    }
  }
  return steps;
}

std::vector<Piece> query_pieces(const std::vector<RequestSpec>& batch, std::int64_t chunk, std::int64_t step) {
  std::vector<Piece> pieces;
  for (std::size_t b = 0; b < batch.size(); ++b) {
    const RequestSpec& request = batch[b];
    const std::int64_t size = chunk > 0 ? chunk : request.query_len;
    const std::int64_t begin = request.context_len + step * size;
    if (step == 0 || begin < request.seq_len()) {
      pieces.push_back({static_cast<std::int64_t>(b), begin, std::min(begin + size, request.seq_len())});
    }
  }
  return pieces;
}

std::vector<std::vector<Piece>> context_steps(const std::vector<RequestSpec>& batch, std::int64_t tokens) {
  std::vector<std::vector<Piece>> steps;
  std::int64_t room = 0;
  for (std::size_t b = 0; b < batch.size(); ++b) {
    for (std::int64_t begin = 0; begin < batch[b].context_len;) {
      if (room == 0) {
        steps.emplace_back();
        room = tokens;
      }
      const std::int64_t size = std::min(room, batch[b].context_len - begin);
      steps.back().push_back({static_cast<std::int64_t>(b), begin, begin + size});
      begin += size;
      room -= size;
    }
  }
  return steps;
}

PageTable::PageTable(const std::vector<RequestSpec>& batch, std::uint64_t seed) {
  for (const RequestSpec& request : batch) {
    pages_.emplace_back(at(ceil_div(request.seq_len(), kPageSize)));
    num_pages_ += static_cast<std::int64_t>(pages_.back().size());
  }
  std::vector<std::int32_t> order(at(num_pages_));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  auto next = order.begin();
  for (std::vector<std::int32_t>& pages : pages_) {
    const auto end = next + static_cast<std::ptrdiff_t>(pages.size());
    std::copy(next, end, pages.begin());
    next = end;
  }
}

std::span<const std::int32_t> PageTable::pages(std::int64_t request) const noexcept { return pages_[at(request)]; }

std::int64_t PageTable::slot(std::int64_t request, std::int64_t position) const noexcept {
  return std::int64_t{pages_[at(request)][at(position / kPageSize)]} * kPageSize + position % kPageSize;
}

CacheMemory::CacheMemory(const PageTable& table, std::int64_t row_bytes, float scale)
    : bytes_(DType::uint8, {table.num_pages(), PageTable::kPageSize, row_bytes}),
      num_pages_(table.num_pages()),
      row_bytes_(row_bytes),
      scale_(scale) {}

MutableCacheView CacheMemory::view() noexcept {
  MutableCacheView view;
  view.data = bytes_.data();
  view.num_pages = num_pages_;
  view.page_size = PageTable::kPageSize;
  view.page_stride = PageTable::kPageSize * row_bytes_;
  view.row_stride = row_bytes_;
  view.scale = scale_;
  return view;
}

Step::Step(const PageTable& table, std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
  query_start_.push_back(0);
  for (const Piece& piece : pieces_) {
    tokens_ += piece.size();
    max_pages_ = std::max(max_pages_, ceil_div(piece.end, PageTable::kPageSize));
    query_len_.push_back(static_cast<std::int32_t>(piece.size()));
    seq_len_.push_back(static_cast<std::int32_t>(piece.end));
    query_start_.push_back(static_cast<std::int32_t>(tokens_));
  }
  // Entries past a request's last page are never read; -1 would be noticed.
  block_table_.resize(pieces_.size() * at(max_pages_), -1);
  positions_.reserve(at(tokens_));
  slots_.reserve(at(tokens_));
  for (std::size_t b = 0; b < pieces_.size(); ++b) {
    const Piece& piece = pieces_[b];
    const std::span<const std::int32_t> pages = table.pages(piece.request);
    const std::int64_t used = ceil_div(piece.end, PageTable::kPageSize);
    std::copy_n(pages.begin(), used, block_table_.begin() + static_cast<std::ptrdiff_t>(b * at(max_pages_)));
    for (std::int64_t position = piece.begin; position < piece.end; ++position) {
      positions_.push_back(static_cast<std::int32_t>(position));
      slots_.push_back(table.slot(piece.request, position));
    }
  }
}

Requests Step::requests() const noexcept {
  const auto count = static_cast<std::int64_t>(pieces_.size());
  return {{query_start_.data(), {count + 1}}, {seq_len_.data(), {count}}, {block_table_.data(), {count, max_pages_}}};
}

namespace {

/// Keeps hidden states apart from the weights that the same seed makes.
constexpr std::uint64_t kHiddenStates = 0x68696464656e2073;

}  // namespace

Tensor random_hidden(const Step& step, std::int64_t hidden_size, DType dtype, std::uint64_t seed, std::int64_t layer,
                     int threads) {
  Tensor hidden(dtype, {step.tokens(), hidden_size});
  std::int64_t first = 0;
  for (const Piece& piece : step.pieces()) {
    device::parallel_for(piece.size(), device::thread_count(threads), [&](std::int64_t i, int) {
      // Requests, positions and layers have 16, 31 and at most 17 bits here.
      const std::uint64_t stream = (static_cast<std::uint64_t>(layer) << 47) ^
                                   (static_cast<std::uint64_t>(piece.request) << 31) ^
                                   static_cast<std::uint64_t>(piece.begin + i);
      const AnyView row(hidden.data() + (first + i) * hidden_size * size_of(dtype), dtype, 1, {hidden_size}, {1});
      layer::fill_normal(row, seed ^ kHiddenStates, stream, 1.0, 1);
    });
    first += piece.size();
  }
  return hidden;
}

}  // namespace headrace::app
