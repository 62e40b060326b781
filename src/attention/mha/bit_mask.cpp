// SPDX-License-Identifier: Apache-2.0
#include "attention/mha/bit_mask.h"

#include <algorithm>

namespace headrace::attention {

std::span<PageMap> take_page_maps(Arena& arena, std::int64_t entries, int threads) {
  const auto pages = arena.take<PageEntry>(entries * threads);
  const auto maps = arena.take<PageMap>(threads);
  for (std::size_t t = 0; t < maps.size(); ++t) {
    maps[t] = {pages.subspan(t * static_cast<std::size_t>(entries), static_cast<std::size_t>(entries)), -1};
  }
  return maps;
}

std::int64_t mask_key_end(SelectionSpace space, const cache::Request& request, std::int64_t last) noexcept {
  return space == SelectionSpace::request_position ? last + 1 : request.seq_len;
}

MaskBuilder::MaskBuilder(const Attention& attention, const Inputs& inputs, const cache::Request& request, PageMap& map)
    : attention_(attention), inputs_(inputs), request_(request) {
  if (attention.space != SelectionSpace::cache_slot) {
    return;
  }
  const std::int64_t page_size = inputs.cache.page_size;
  const auto pages = map.entries.first(static_cast<std::size_t>((request.seq_len + page_size - 1) / page_size));
  pages_ = pages;
  if (map.request == request.number) {
    return;
  }
  map.request = request.number;
  for (std::size_t block = 0; block < pages.size(); ++block) {
    pages[block] = {inputs.requests.block_table(request.number, block), static_cast<std::int32_t>(block)};
  }
  // By page, then by block: a page that occurs twice counts where it occurs first.
  std::sort(pages.begin(), pages.end(), [](const PageEntry& a, const PageEntry& b) {
    return a.page != b.page ? a.page < b.page : a.block < b.block;
  });
}

std::int64_t MaskBuilder::position_of(std::int32_t entry, std::int64_t row_position) const noexcept {
  if (entry < 0) {
    return -1;
  }
  if (attention_.space == SelectionSpace::request_position) {
    return entry <= row_position ? entry : -1;
  }
  const std::int64_t page = entry / inputs_.cache.page_size;
  const auto found = std::lower_bound(pages_.begin(), pages_.end(), page,
                                      [](const PageEntry& a, std::int64_t wanted) { return a.page < wanted; });
  if (found == pages_.end() || found->page != page) {
    return -1;
  }
  const std::int64_t position = found->block * inputs_.cache.page_size + entry % inputs_.cache.page_size;
  return position < request_.seq_len ? position : -1;
}

void MaskBuilder::build(std::int64_t position, std::span<std::uint64_t> words) const noexcept {
  if (attention_.rule.covers(position)) {
    for (std::size_t w = 0; w < words.size(); ++w) {
      words[w] = prefix_word(position + 1, static_cast<std::int64_t>(w) * kMaskKeys);
    }
    return;
  }
  std::fill(words.begin(), words.end(), std::uint64_t{0});
  const Selection& selection = inputs_.selection;
  const std::int64_t token = request_.token_at(position);
  std::int64_t columns = selection.index.dim(1);
  if (!selection.count.empty()) {
    columns = std::clamp<std::int64_t>(selection.count(token), 0, columns);
  }
  for (std::int64_t c = 0; c < columns; ++c) {
    const std::int64_t key = position_of(selection.index(token, c), position);
    if (key >= 0) {
      words[static_cast<std::size_t>(key / kMaskKeys)] |= std::uint64_t{1} << (key % kMaskKeys);
    }
  }
}

}  // namespace headrace::attention
