// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "headrace/export.h"
#include "headrace/view.h"

namespace headrace {

/// How a selection addresses keys.
enum class SelectionSpace : std::uint8_t {
  request_position,  ///< position in the request, causal
  cache_slot,        ///< page * page_size + row of the flat cache; not causal. A slot that holds none of the request's
                     ///< own keys [0, seq_len) is out of range, and so ignored.
};

/// For each query token the keys it attends to. Order means nothing and a repeated entry counts once; entries that are
/// negative, out of range or (by position) in the future are ignored, identically on every path. A count outside
/// [0, width] is taken as the nearer end.
struct Selection {
  View<const std::int32_t> index;  ///< [T, width]
  View<const std::int32_t> count;  ///< [T] or empty: columns from count on are never read; without it all columns count
  SelectionSpace space = SelectionSpace::request_position;
};

/// What is known of a selection without reading it: for which rows it is sure to select every causal key. Those rows
/// are called covered.
class HEADRACE_EXPORT SelectionRule {
 public:
  enum class Kind : std::uint8_t { none, lightning, kpool, opaque };

  /// No selection: every row attends to every causal key (DeepSeek-V3, Kimi-K2).
  [[nodiscard]] static SelectionRule none() noexcept { return SelectionRule{}; }
  /// The `topk` keys of highest score. @throws Error unless topk >= 1
  [[nodiscard]] static SelectionRule lightning(std::int64_t topk);
  /// The topk / pool complete pools of highest score, and with `tail` the incomplete pool at the end.
  /// @throws Error unless 1 <= pool <= topk < 2^31 and topk is a multiple of the pool
  [[nodiscard]] static SelectionRule kpool(std::int64_t topk, std::int64_t pool, bool tail);
  /// A caller's own selection: nothing is covered.
  /// @param width  distinct keys that a row has at most, so that costs can be counted and room reserved; 0 where that
  ///               is not known. @throws Error unless >= 0
  [[nodiscard]] static SelectionRule opaque(std::int64_t width = 0);

  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  [[nodiscard]] std::int64_t topk() const noexcept { return topk_; }
  [[nodiscard]] std::int64_t pool() const noexcept { return pool_; }
  [[nodiscard]] bool tail() const noexcept { return tail_; }

  /// Columns a selection under this rule needs: topk, and for k-pool pool - 1 more for a tail.
  /// For `opaque` what it was made with, 0 for `none`.
  [[nodiscard]] std::int64_t width() const noexcept;
  /// Whether the row at this position (it sees position + 1 keys) is covered.
  [[nodiscard]] bool covers(std::int64_t position) const noexcept;
  /// Rows at positions [0, covered_prefix()) are all covered; INT64_MAX for `none`.
  [[nodiscard]] std::int64_t covered_prefix() const noexcept;
  /// Keys that the row at this position attends to at most; for `opaque` every causal key.
  [[nodiscard]] std::int64_t keys_at(std::int64_t position) const noexcept;
  /// "none", "lightning(2048)", "kpool(2048, 4, tail)", "kpool(2048, 4)", "opaque".
  [[nodiscard]] std::string to_string() const;

  bool operator==(const SelectionRule&) const = default;

 private:
  Kind kind_ = Kind::none;
  std::int64_t topk_ = 0;
  std::int64_t pool_ = 1;
  bool tail_ = false;
};

}  // namespace headrace
