// SPDX-License-Identifier: Apache-2.0
#include "attention/mha/bit_mask.h"
#include "attention/paths/mha_steps.h"
#include "attention/paths/path.h"

namespace headrace::attention {
namespace {

class MaskedMha final : public PathAlgorithm {
 public:
  [[nodiscard]] Work count_work(const Attention& attention, std::int64_t begin, std::int64_t end,
                                std::int64_t query_slice) const override;
  [[nodiscard]] std::int64_t workspace_bytes(const Attention& attention, const Extents& extents,
                                             const Blocking& blocking) const override;
  [[nodiscard]] Blocking choose_blocking(const Attention& attention, const Extents& extents,
                                         std::int64_t budget) const override;
  void run(const Call& call, std::span<const Rows> rows, Arena arena) const override;

 private:
  [[nodiscard]] Support support() const override;
  [[nodiscard]] std::vector<std::string> unmet_by_rows(const Attention& attention, std::int64_t begin, std::int64_t end,
                                                       bool exact) const override;
};

}  // namespace

Support MaskedMha::support() const {
  static constexpr DType kCompute[] = {DType::float32, DType::bfloat16};
  static constexpr CacheFormat kFormats[] = {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8,
                                             CacheFormat::fp8_ds_mla};
  return {.compute = kCompute, .formats = kFormats};
}

std::vector<std::string> MaskedMha::unmet_by_rows(const Attention& /*attention*/, std::int64_t /*begin*/,
                                                  std::int64_t /*end*/, bool /*exact*/) const {
  return {};
}

Work MaskedMha::count_work(const Attention& attention, std::int64_t begin, std::int64_t end,
                           std::int64_t query_slice) const {
  Work work = count_mha_work(attention, begin, end, query_slice);
  const auto rows = static_cast<double>(end - begin);
  work.mask_keys = rows * static_cast<double>(mask_words(end) + attention.rule.keys_at(end - 1));
  return work;
}

std::int64_t MaskedMha::workspace_bytes(const Attention& attention, const Extents& extents,
                                        const Blocking& blocking) const {
  return mha_workspace_bytes(attention, extents, blocking, MaskUse::selection);
}

Blocking MaskedMha::choose_blocking(const Attention& attention, const Extents& extents, std::int64_t budget) const {
  return choose_mha_blocking(attention, extents, budget, MaskUse::selection);
}

void MaskedMha::run(const Call& call, std::span<const Rows> rows, Arena arena) const {
  run_mha(call, rows, MaskUse::selection, arena);
}

const PathAlgorithm& masked_mha() {
  static const MaskedMha algorithm;
  return algorithm;
}

}  // namespace headrace::attention
