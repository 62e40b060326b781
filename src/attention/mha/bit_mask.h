// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "attention/arena.h"
#include "cache/requests.h"
#include "headrace/attention.h"

namespace headrace::attention {

/// Keys a mask word covers.
inline constexpr std::int64_t kMaskKeys = 64;

[[nodiscard]] constexpr std::int64_t mask_words(std::int64_t keys) noexcept {
  return (keys + kMaskKeys - 1) / kMaskKeys;
}

/// The bits of keys [0, keys) that fall into the word of keys [first, first + 64).
[[nodiscard]] constexpr std::uint64_t prefix_word(std::int64_t keys, std::int64_t first) noexcept {
  if (keys >= first + kMaskKeys) {
    return ~std::uint64_t{0};
  }
  return keys <= first ? 0 : (std::uint64_t{1} << (keys - first)) - 1;
}

/// Keys [0, mask_key_end()) hold every key that rows at positions up to `last` may attend to.
[[nodiscard]] std::int64_t mask_key_end(SelectionSpace space, const cache::Request& request,
                                        std::int64_t last) noexcept;

/// A page of a request and which of its blocks of keys lies there.
struct PageEntry {
  std::int32_t page = 0;
  std::int32_t block = 0;
};

/// Where a request's pages lie in it: what turns slots into positions. A thread keeps one from tile to tile.
struct PageMap {
  std::span<PageEntry> entries;
  std::int64_t request = -1;  ///< whose pages these are; -1: nobody's yet
};

/// Turns a request's selection rows into bit masks: bit j of a row is set iff its query token attends to key j. This is
/// the one place that reads selections, so repeats, order, counts and entries out of range mean the same on every path.
class MaskBuilder {
 public:
  /// @param map  for selections in cache_slot space: made anew when it is of another request
  MaskBuilder(const Attention& attention, const Inputs& inputs, const cache::Request& request, PageMap& map);

  /// Writes the words of keys [0, 64 * words.size()) for the row at `position`; words must reach over the row's keys.
  void build(std::int64_t position, std::span<std::uint64_t> words) const noexcept;

 private:
  /// The request-local position of a selection entry, or -1 when it is to be ignored.
  [[nodiscard]] std::int64_t position_of(std::int32_t entry, std::int64_t row_position) const noexcept;

  const Attention& attention_;
  const Inputs& inputs_;
  cache::Request request_;
  std::span<const PageEntry> pages_;
};

/// Map entries a request of seq_len keys takes at most, whatever the page size; none where selections hold positions.
[[nodiscard]] constexpr std::int64_t page_entries(SelectionSpace space, std::int64_t seq_len) noexcept {
  return space == SelectionSpace::cache_slot ? seq_len : 0;
}

/// A map of nobody's pages for each thread, with memory for `entries` entries.
[[nodiscard]] std::span<PageMap> take_page_maps(Arena& arena, std::int64_t entries, int threads);

}  // namespace headrace::attention
