// SPDX-License-Identifier: Apache-2.0
#include "routing/cost_model.h"

#include <algorithm>

namespace headrace::routing {
namespace {

/// Values of the latent whose gathering a profile's gather_mkeys counts.
constexpr double kGatheredValues = 512.0;

}  // namespace

double predict_ms(const attention::Work& work, const Profile& profile, int threads, std::int64_t rows) {
  const double all = threads;
  const double some = static_cast<double>(std::min<std::int64_t>(threads, std::max<std::int64_t>(rows, 1)));
  // A product takes as long as its FLOPs or, with few rows, as reading its weights.
  const double product = std::max(work.product_flops / (profile.product_gflops * 1e9 * all),
                                  work.weight_bytes / (profile.bandwidth_gbytes * 1e9));
  const double seconds = product + work.mha_flops / (profile.mha_gflops * 1e9 * all) +
                         work.mqa_flops / (profile.mqa_gflops * 1e9 * some) +
                         work.gathered / (profile.gather_mkeys * 1e6 * kGatheredValues * some) +
                         work.mask_keys / (profile.mask_gkeys * 1e9 * some);
  return seconds * 1e3;
}

}  // namespace headrace::routing
