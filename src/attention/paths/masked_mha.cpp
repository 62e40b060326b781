// SPDX-License-Identifier: Apache-2.0
#include "attention/mha/bit_mask.h"
#include "attention/paths/mha_steps.h"
#include "attention/paths/path.h"

namespace headrace::attention {
namespace {

class MaskedMha final : public MhaAlgorithm {
 public:
  MaskedMha() noexcept : MhaAlgorithm(MaskUse::selection) {}

  [[nodiscard]] Work count_work(const Attention& attention, std::int64_t begin, std::int64_t end,
                                std::int64_t query_slice) const override {
    Work work = MhaAlgorithm::count_work(attention, begin, end, query_slice);
    const auto rows = static_cast<double>(end - begin);
    work.mask_keys = rows * static_cast<double>(mask_words(end) + attention.rule.keys_at(end - 1));
    return work;
  }

  /// Serves any rows.
  [[nodiscard]] bool serves_rows(const Attention& /*attention*/, std::int64_t /*begin*/, std::int64_t /*end*/,
                                 bool /*exact*/) const override {
    return true;
  }

 private:
  [[nodiscard]] std::vector<std::string> unmet_by_rows(const Attention& /*attention*/, std::int64_t /*begin*/,
                                                       std::int64_t /*end*/, bool /*exact*/) const override {
    return {};
  }
};

}  // namespace

const CpuPath& masked_mha() {
  static const MaskedMha algorithm;
  return algorithm;
}

}  // namespace headrace::attention
